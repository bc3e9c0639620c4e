package attack_test

// cpythonDiffers are the tests of CPython 3.11's own suite that end otherwise in a sandbox, with the reason. Tests is a
// regular expression for whole names; at least one test that it matches differs.
var cpythonDiffers = []struct{ module, tests, reason string }{
	{"test_bdb", `|test\.test_bdb\..*`, forget},
	{"test_doctest", `test\.test_doctest\.TestDocTestFinder\.test_empty_namespace_package`, forget},
	{"test_import", `test\.test_import\..*`, forget},
	{"test_importlib", `test\.test_importlib\.test_threaded_import\..*`, forget},
	{"test_pickle", `test\.test_pickle\..*\.test_unpickle_module_race`, forget},
	{"test_runpy", `test\.test_runpy\.RunModuleTestCase\..*`, forget},
	{"test_trace", `test\.test_trace\.TestCoverageCommandLineOutput\.test_cover_files_written_no_highlight`, forget},
	{"test_support", `test\.test_support\.TestSupport\.test_forget`, forget},
	{"test_subprocess", `|test\.test_subprocess\.POSIXProcessTestCase\.test_(user|group)`,
		"there are no other ids, so that to become one is \"invalid argument\" and not \"not permitted\""},
	{"test_spwd", `test\.test_spwd\.TestSpwdNonRoot\.test_getspnam_exception`, "there is no /etc/shadow, not one that cannot be read"},
	{"test_fcntl", `test\.test_fcntl\.TestFcntl\.test_fcntl_64_bit`,
		"fcntl(F_NOTIFY) is refused: it tells what the host and other sandboxes do with files of the image"},
	{"test_resource", `test\.test_resource\.ResourceTest\.test_prlimit`,
		"prlimit of a process by its number is refused, of itself too: a filter does not know the caller's number"},
	{"test_uuid", `test\.test_uuid\.TestInternalsWith(out)?ExtModule\.test_(ifconfig|ip)_getnode`,
		"skipped: there is no network interface with an address of hardware"},
	{"test_largefile", `test\.test_largefile\.Test(Copyfile|SocketSendfile)\.test_it`,
		"skipped: it wants 6 GB of free disk, more than the run's limit"},
}

const forget = "it removes a compiled file beside the library that is not there, which is \"no such file\" where the library cannot be " +
	"written for lack of rights, and \"read-only file system\" in a sandbox"

// cpythonLeftOut are modules that say nothing, with the reason.
var cpythonLeftOut = map[string]string{
	"test_doctest.txt":  "data of another test",
	"test_doctest2.txt": "data of another test",
}

// cpythonIgnored are tests that are run neither outside nor inside, as patterns for the suite's option -i: sockets of UDP-Lite
// and netlink, which lists interfaces, are refused, and at an error of theirs the suite's report of the whole module is lost.
var cpythonIgnored = map[string][]string{
	"test_socket": {"*UDPLITE*", "*testInterfaceNameIndex", "*scopeid_symbolic*"},
}
