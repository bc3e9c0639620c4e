# cgroup2_guest.sh: what cgroup2.sh has the emulated machine do, as a service of its systemd. The last line says how it went.
set -u
export PATH=/usr/sbin:/usr/bin HOME=/root
parts=$(cat /mnt/parts)
failed= ran=
export GLOVEBOX_TEST_SLACK=5m # emulation is slow, and the machine that emulates may be busy
set -f # patterns of parts are not for files

# part NAME COMMAND...: runs one part, if it is wanted, and says how it ended.
part() {
	name=$1; shift
	wanted=
	for pattern in $parts; do case $name in $pattern) wanted=yes ;; esac; done
	[ -n "$wanted" ] || return 0
	ran=yes
	echo "== $name"
	start=$(date +%s)
	if "$@"; then word=passed; else word=FAILED; failed="$failed $name"; fi
	echo "cgroup2: $word $name, $(($(date +%s) - start)) s"
}

# as_tester COMMAND: in a session of an ordinary user, as after a login.
as_tester() {
	systemd-run --quiet --wait --pipe -p User=tester -p PAMName=glovebox -p WorkingDirectory=/home/tester \
		-E PATH=/usr/sbin:/usr/bin -E HOME=/home/tester -E GLOVEBOX_TEST_SLACK="$GLOVEBOX_TEST_SLACK" sh -euc "$1"
}

# root_tests PACKAGE FLAG...: the tests of a package.
root_tests() {
	package=$1; shift
	(cd "/mnt/$package" && TMPDIR=/tmp GLOVEBOX_TEST_ROOT=1 GLOVEBOX_TEST_INIT=/mnt/glovebox-init \
		GLOVEBOX_TEST_PROBE=/mnt/probe \
		"/mnt/$package.test" -test.v -test.timeout 60m "$@")
}

# nothing_left waits until the scopes that the runs asked for are gone.
nothing_left() {
	for _ in $(seq 100); do
		find /sys/fs/cgroup -path '*glovebox-*.scope*' -o -path '*/glovebox/*' -type d | grep . || return 0
		sleep 0.1
	done
	return 1
}

# A run that says when it has started, and what waits for that.
slow='/mnt/glovebox run --quiet --trust model --isolation process -c "import time; print(7, flush=True); time.sleep(15)" >$HOME/said & run=$!
	until grep -q 7 $HOME/said; do sleep 0.1; done'

# Killed without a chance to clean up.
killed="$slow; kill -9 \$run"

# systemd looks at its whole tree anew while a run is on: the run's limits must stay.
reload() {
	cat <<-END
		$slow
		systemctl $1 daemon-reload
		limits=\$(find /sys/fs/cgroup -path '*/glovebox/*/run/*' \\( -name memory.max -o -name pids.max -o -name cpu.max \\) -exec cat {} + | sort)
		echo \$limits
		[ "\$(echo \$limits)" = "100000 100000 128 536870912" ] && wait \$run
	END
}

# refused is an account for which no user manager runs.
refused() {
	systemd-run --quiet --wait --pipe -p User=nobody -E PATH=/usr/sbin:/usr/bin -E HOME=/tmp \
		/mnt/glovebox run --trust model --isolation process -c 'print(1)' 2>&1 | tee /tmp/said
	grep -qxF 'fix: systemd-run --user --scope -p Delegate=yes glovebox …' /tmp/said
}

# bounded is a user's run in a group that has a limit and is not handed over: that limit must not be left behind.
bounded() {
	as_tester 'systemd-run --user --scope --quiet -p MemoryMax=1G sh -c "/mnt/glovebox run --trust model -c 1; exit 0"' 2>&1 |
		tee /tmp/said
	grep -q '^why: .*has a limit and is not its own to divide' /tmp/said
}

# cpuset has systemd hand users that controller too, as doctor advises.
cpuset() {
	mkdir -p /etc/systemd/system/user@.service.d
	printf '[Service]\nDelegate=cpu cpuset io memory pids\n' >/etc/systemd/system/user@.service.d/delegate.conf
	systemctl daemon-reload && systemctl stop user@1000
	as_tester '/mnt/glovebox run --trust model --isolation process --json -c "print(1)"' | tee /tmp/said
	grep -q '"cgroup_cpuset":"[01]"' /tmp/said
}

# A run whose output is checked; the first words may say how to start glovebox.
run='[ "$($before /mnt/glovebox run --quiet --trust model --isolation process -c "print(1)")" = 1 ]'
scope='systemd-run --user --scope --quiet -p Delegate=yes'

swap() { dd if=/dev/zero of=/swap bs=1M count=256 status=none && mkswap -q /swap && swapon /swap; }

echo "kernel $(uname -r), $(systemctl --version | head -n 1), controllers $(cat /sys/fs/cgroup/cgroup.controllers)"
[ ! -e /sys/fs/cgroup/memory ] || { echo "version 1 is here too"; exit 1; }
: >/lib/modules/$(uname -r)/modules.order; : >/lib/modules/$(uname -r)/modules.builtin
depmod -a && modprobe loop # overlay comes by itself, as on any machine

part root-run sh -c "before=; $run"
part root-doctor /mnt/glovebox doctor
part root-cgroup root_tests cgroup
part root-process root_tests process
part root-reload sh -euc "$(reload '')"
part swap-on swap
part swap-cgroup root_tests cgroup
part scope-run as_tester "before='$scope'; $run"
part scope-doctor as_tester "$scope /mnt/glovebox doctor"
part user-run as_tester "before=; $run"
part user-doctor as_tester '/mnt/glovebox doctor'
part user-process as_tester "cd /mnt/process && TMPDIR=/home/tester GLOVEBOX_TEST_INIT=/mnt/glovebox-init \
		GLOVEBOX_TEST_PROBE=/mnt/probe \
	/mnt/process.test -test.v -test.run 'TestConformance|TestKeptToItsCPUs|TestHold|TestFork|TestHeld|TestTemplateEnds'"
part shell-run as_tester "$scope sh -c 'cat /proc/self/cgroup; before=; $run'" # its scope has the shell in it
part user-reload as_tester "XDG_RUNTIME_DIR=/run/user/1000; export XDG_RUNTIME_DIR; $(reload --user)"
part user-killed as_tester "$killed"
part nothing-left nothing_left
part no-manager-run refused
part bounded-run bounded
part cpuset-run cpuset

[ -n "$ran" ] || failed=" nothing ran"
[ -z "$failed" ] && echo "cgroup2: all passed" || echo "cgroup2: failed:$failed"
