package attack_test

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// promises are those that are easily forgotten, each with the tests that hold it, as PACKAGE:Test or a test of this package.
var promises = []struct{ says, tests string }{
	{"no thread, child or helper of a run starts before the fence",
		"driver/process:TestPostureOfEveryThread driver/process:TestEveryThreadOfInit TestKS23StateOfEveryProcess"},
	{"every mount target is opened by descriptor and no link is followed",
		"driver/process:TestMountTargetsFollowNoLink internal/image:TestHostLayouts"},
	{"what a request sets touches the program only",
		"driver/process:TestRequestTouchesTheProgramOnly policy:TestRefusedRequests TestFS09InputNames"},
	{"each limit counts for its own run alone",
		"internal/admission:TestBudget engine:TestCrowd TestPairsUnderTheLimits engine:TestJudgeBlamesTheMachine"},
	{"a sandbox dies within a second of its supervisor, however that died",
		"driver/process:TestSupervisorDies TestRS44CallerGoesAway"},
	{"kill and cancel are right at every instant", "TestEndedAtEveryInstant TestKilledAtEveryInstant TestEveryEndIsTheSame"},
	{"work on what comes out is linear and bounded",
		"internal/output:TestTextIsLinear internal/output:TestCaptureFloodLeavesMemoryAlone internal/output:TestCollectManyNames"},
	{"what was judged is what is used", "engine:TestTakeInputs TestFS18ReadOnlyInputs TestFS35MovedRules"},
	{"if the record cannot be written, nothing runs", "engine:TestRunWithoutATrace internal/store:TestOpenRefusesAndLeavesAsItWas"},
	{"the death of a part never opens what was closed", "driver/process:TestSupervisorDies internal/trace:TestAKilledWriterLosesNothing"},
	{"from inside nothing lets a run weaken its own fence", "TestKS25OwnFilter TestKS03Namespaces TestCF11WordsAreData TestFS41ControlFiles"},
	{"two runs share no random stream, identity or token", "TestNothingIsShared TestLT01LeftForTheNext TestNT18RunToRun"},
	{"a program that floods, fuzzes or exhausts harms its own run alone",
		"TestKS20Fuzz TestRS03ForkBomb TestRS12Memory TestRS23Flood TestRS45Churn"},
}

// TestPromises demands that each promise has tests and that they are there.
func TestPromises(t *testing.T) {
	known := map[string][]string{}
	for _, p := range promises {
		for _, name := range strings.Fields(p.tests) {
			dir, test, elsewhere := strings.Cut(name, ":")
			if !elsewhere {
				dir, test = "attack", name
			}
			if known[dir] == nil {
				known[dir] = testsIn(t, filepath.Join("..", dir))
			}
			if !slices.Contains(known[dir], test) {
				t.Errorf("%q names %s, which %s does not have", p.says, test, dir)
			}
		}
	}
}

// TestNothingIsShared runs one program twice, at the same time: nothing that should be each run's own is the same.
func TestNothingIsShared(t *testing.T) {
	own := make([][]string, 2)
	var both sync.WaitGroup
	l := need(t)
	for i := range own {
		both.Go(func() { own[i] = strings.Fields(l.run(t, trial{program: "lt_own.py"}).Stdout) })
	}
	both.Wait()
	a, b := own[0], own[1]
	if len(a) != 7 || len(b) != len(a) || a[len(a)-1] != "end" || b[len(b)-1] != "end" {
		t.Fatalf("%q and %q", a, b)
	}
	for i, value := range a[:len(a)-1] {
		name, _, _ := strings.Cut(value, "=")
		if value == b[i] || strings.HasSuffix(value, "=") {
			t.Errorf("%s: both have %s", name, value)
		}
	}
}
