// Loaded by node before a program (node -r): waits on descriptor 3 for its arguments and its environment. Then node goes on
// with the program by itself.
'use strict';
const { isMainThread } = require('worker_threads');

function words(fs) {
  fs.writeSync(3, 'R');
  const parts = [];
  const part = Buffer.allocUnsafe(1 << 16);
  for (let n; (n = fs.readSync(3, part)) > 0;) parts.push(Buffer.from(part.subarray(0, n)));
  fs.closeSync(3);
  return Buffer.concat(parts).toString().split('\0');
}

function understood(list) {
  const next = () => {
    if (list.length === 0) throw new Error('it ended early');
    return list.shift();
  };
  const several = () => {
    const n = next();
    if (!/^[0-9]{1,9}$/.test(n) || n > list.length) throw new Error('a wrong number');
    return list.splice(0, Number(n));
  };
  if (list.pop() !== '') throw new Error('the last string has no end');
  const stdin = next();
  const args = several();
  const env = several();
  if (!/^[01]$/.test(stdin) || list.length !== 0) throw new Error('more than was announced');
  return { stdin: stdin === '1', args, env };
}

function hold() {
  const fs = require('fs');
  const list = words(fs);
  if (list.length === 1 && list[0] === '') process.exit(0);
  let what;
  try {
    what = understood(list);
  } catch (error) {
    fs.writeSync(2, `glovebox: what to run was not understood: ${error.message}\n`);
    process.exit(1);
  }
  for (const name of Object.keys(process.env)) delete process.env[name];
  for (const text of what.env) {
    const at = text.indexOf('=');
    process.env[text.slice(0, at)] = text.slice(at + 1);
  }
  process.argv.push(...what.args);
  process.execArgv = [];
  if (!what.stdin) {
    fs.closeSync(0);
    fs.openSync('/dev/null', 'r'); // which is 0, the lowest that is free
  }
}

if (isMainThread) {
  hold();
} else if (process.execArgv[1] === __filename) {
  process.execArgv = process.execArgv.slice(2); // a worker loads what its process did; there is nothing to wait for
}
delete require.cache[__filename];
