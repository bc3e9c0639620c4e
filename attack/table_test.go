package attack_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// required are the entries of the battery that must hold before anyone trusts the sandbox. Each has a line in the table.
const required = `
FS-01 FS-02 FS-04 FS-06 FS-08 FS-09 FS-11 FS-12 FS-14 FS-15 FS-16 FS-18 FS-21 FS-22 FS-23 FS-28 FS-31 FS-33 FS-35 FS-36 FS-39 FS-41
FS-43 NT-01 NT-02 NT-03 NT-05 NT-07 NT-08 NT-10 NT-11 NT-12 NT-13 NT-15 NT-17 NT-18 NT-19 NT-21 NT-23 NT-24 NT-26 CR-01 CR-02 CR-04
CR-05 CR-07 CR-09 CR-10 CR-11 CR-12 CR-14 CR-16 CR-17 RS-01 RS-02 RS-03 RS-05 RS-06 RS-07 RS-09 RS-10 RS-12 RS-13 RS-17 RS-20 RS-23
RS-24 RS-26 RS-28 RS-29 RS-30 RS-31 RS-34 RS-40 RS-42 RS-44 RS-45 RS-49 KS-01 KS-03 KS-05 KS-06 KS-07 KS-09 KS-10 KS-11 KS-12 KS-15 KS-17
KS-20 KS-23 IL-02 IL-03 IL-07 IL-13 LT-01 LT-02 LT-04 LT-09 LT-11 LT-14 OU-01 OU-02 OU-06 OU-09 OU-10 OU-13 OU-14 OU-21 AU-01 AU-04
AU-07 CF-01 CF-03 CF-04 CF-05 CF-06 CF-10 CF-11 CF-15 LG-06 CT-01 CT-02 CT-04 CT-05 CT-10 CT-11
BL-001 BL-006 BL-008 BL-009 BL-011 BL-012 BL-013 BL-014 BL-016 BL-017 BL-020 BL-021 BL-022 BL-025 BL-026 BL-028 BL-029 BL-030 BL-031
BL-033 BL-034 BL-035 BL-036 BL-038 BL-040 BL-041 BL-042 BL-043 BL-045 BL-047 BL-049 BL-050 BL-051 BL-052 BL-053 BL-055 BL-056 BL-057
BL-059 BL-061 BL-062 BL-065 BL-066 BL-068 BL-070 BL-072 BL-073 BL-074 BL-076 BL-077 BL-078 BL-080 BL-081 BL-083 BL-084 BL-085 BL-086
BL-087 BL-088 BL-090 BL-092 BL-093 BL-094 BL-095 BL-096 BL-097 BL-099 BL-100 BL-101 BL-104 BL-105 BL-107 BL-109 BL-110 BL-111 BL-112
BL-113 BL-114 BL-115 BL-118 BL-119 BL-120 BL-121 BL-123 BL-124 BL-125 BL-128 BL-131 BL-132 BL-133 BL-134 BL-136 BL-138 BL-139 BL-140
BL-141 BL-143 BL-144 BL-145 BL-147 BL-148 BL-152 BL-154 BL-155 BL-157 BL-158 BL-159 BL-161`

// Why an entry has no program yet.
const (
	noUploads  = "not built: files come in by --input alone; there is no door to upload or download by name"
	noArchives = "not built: archives are not unpacked by Glovebox; a program unpacks them with its own rights and limits"
	noSessions = "not built: sessions; every --session is refused, see TestCF04StrongerRungs"
	noRules    = "not built: path rules; a program sees its own folders, its inputs and the image, and nothing can be added"
	noDoors    = "not built: other doors than the command line, which has one way to run a program"
)

// outcomes is the table: for each entry the tests that hold it, a test of another folder as folder:Test, or the reason why
// there is none.
var outcomes = merge(files, network, credentials, resources, kernel, information, lifetime, outputs, doors, controls,
	reported)

var files = map[string]string{
	"FS-01": "TestFS01PlainPaths", "FS-02": "TestFS02Climb", "FS-04": "TestFS04Descriptors",
	"FS-06": "TestFS06ArtifactLinks",
	"FS-08": "TestFS08SwapWhileCollected", "FS-09": "TestFS09InputNames",
	"FS-11": "TestFS06ArtifactLinks internal/output:TestPlace",
	"FS-12": "TestFS12LinksEverywhere", "FS-14": "TestFS14Devices", "FS-15": "TestFS14Devices",
	"FS-16": "TestFS16SetUserID",
	"FS-18": "TestFS18ReadOnlyInputs", "FS-21": "TestFS21SparseGiants", "FS-22": "TestFS22FillTheDisk",
	"FS-23": "TestFS23Inodes",
	"FS-28": "TestFS28PipeAsArtifact TestFS06ArtifactLinks", "FS-31": "TestFS31SharedImage", "FS-33": "TestFS33Handles",
	"FS-35": "TestFS35MovedRules", "FS-36": "TestFS36LaterPaths TestLT01LeftForTheNext", "FS-39": noArchives,
	"FS-41": "TestFS41ControlFiles",
	"FS-43": "driver/microvm:TestConformance", "FS-25": "TestFS25HostileNames", "FS-26": "TestFS25HostileNames",
	"FS-27": "TestFS25HostileNames",
	"FS-30": "TestFS06ArtifactLinks",
}

var network = map[string]string{
	"NT-01": "TestNT01Out", "NT-02": "TestNT02Names", "NT-03": "TestNT03Loopback TestNT01Out",
	"NT-05": "TestNT01Out TestNT07NetworkOfTheRun",
	"NT-07": "TestNT01Out TestNT07NetworkOfTheRun", "NT-08": "TestNT08RawSockets", "NT-10": "driver/microvm:TestConformance",
	"NT-11": "TestNT08RawSockets",
	"NT-12": "TestNT12UnixSockets", "NT-13": "TestNT12UnixSockets", "NT-15": "TestKS01RefusedCalls",
	"NT-17": "TestNT17Inbound",
	"NT-18": "TestNT18RunToRun TestNT12UnixSockets", "NT-19": "internal/netlab:TestBattery", "NT-21": "internal/netlab:TestBattery", "NT-23": "internal/netlab:TestBattery",
	"NT-24": "TestNT01Out",
	"NT-26": "TestNT26EmptyMeansClosed", "NT-28": "TestNT01Out",
}

var credentials = map[string]string{
	"CR-01": "TestCR01Environment", "CR-02": "TestCR01Environment", "CR-04": "TestCR01Environment",
	"CR-05": "TestFS04Descriptors",
	"CR-07": "TestCR07Attach", "CR-09": "TestCR09Keys", "CR-10": "TestCR10Services",
	"CR-11": "TestCR10Services TestNT03Loopback",
	"CR-12": "TestCR10Services TestFS01PlainPaths", "CR-14": "internal/brokerd:TestPlaceholder internal/brokerd:TestAttach", "CR-16": "TestNT03Loopback TestCR10Services",
	"CR-17": "TestCR17Terminal",
}

var resources = map[string]string{
	"RS-01": "TestRS01BusyLoop", "RS-02": "TestRS02Sleep", "RS-03": "TestRS03ForkBomb",
	"RS-05": "TestRS05DefaultProcessLimit",
	"RS-06": "TestRS06DetachedChildKeepsPipes", "RS-07": "TestRS07DetachedChildWithoutPipes",
	"RS-09": "TestRS09DeafToSignals",
	"RS-10": "TestRS10StopItself", "RS-12": "TestRS12Memory", "RS-13": "TestRS13MemoryThroughFiles",
	"RS-17": "TestRS12Memory",
	"RS-19": "TestRS12Memory", "RS-20": "TestRS20ManySpinners", "RS-23": "TestRS23Flood",
	"RS-24": "TestRS24BothStreams",
	"RS-26": "TestRS26EdgeOfTheOutputLimit", "RS-28": "TestRS28ClosedStreams",
	"RS-29": "TestRS07DetachedChildWithoutPipes",
	"RS-30": "TestRS30UnreadInput", "RS-31": "TestRS31NoInput", "RS-33": "TestRS33Zombies",
	"RS-34": "TestRS34LeaveTheGroup",
	"RS-36": "TestRS36RaiseLimits", "RS-37": "TestRS36RaiseLimits",
	"RS-39": "TestKS01RefusedCalls TestRS47InnerTimeouts", "RS-40": "TestRS40OddLimits policy:TestOddLimits",
	"RS-42": "TestRS42BuildStep", "RS-44": "TestRS44CallerGoesAway", "RS-45": "TestRS45Churn",
	"RS-47": "TestRS47InnerTimeouts", "RS-49": "TestRS49Unaccepted driver/process:TestListen",
}

var kernel = map[string]string{
	"KS-01": "TestKS01RefusedCalls", "KS-03": "TestKS03Namespaces", "KS-05": "TestCR07Attach",
	"KS-06": "TestKS01RefusedCalls",
	"KS-07": "TestKS01RefusedCalls", "KS-09": "TestCR09Keys TestKS01RefusedCalls", "KS-10": "TestKS01RefusedCalls",
	"KS-11": "TestCR07Attach",
	"KS-12": "TestKS01RefusedCalls", "KS-13": "TestNT08RawSockets", "KS-14": "TestKS01RefusedCalls",
	"KS-15": "TestCR17Terminal",
	"KS-17": "TestKS17OtherNumbering", "KS-20": "TestKS20EveryNumber TestKS20Fuzz", "KS-21": "TestKS01RefusedCalls",
	"KS-22": "TestKS01RefusedCalls",
	"KS-23": "TestKS23StateOfEveryProcess", "KS-25": "TestKS25OwnFilter", "KS-28": "TestFS41ControlFiles",
}

var information = map[string]string{
	"IL-01": "TestIL02NamesOfTheHost", "IL-02": "TestIL02NamesOfTheHost", "IL-03": "TestIL02NamesOfTheHost",
	"IL-05": "TestFS41ControlFiles",
	"IL-07": "TestCR07Attach", "IL-08": "TestIL02NamesOfTheHost", "IL-10": "TestIL02NamesOfTheHost",
	"IL-12": "TestIL02NamesOfTheHost",
	"IL-13": "TestIL13Processors", "IL-14": "TestIL02NamesOfTheHost",
}

var lifetime = map[string]string{
	"LT-01": "TestLT01LeftForTheNext TestLTWarmReuse", "LT-02": "TestLT01LeftForTheNext TestLTWarmReuse",
	"LT-04": "TestLT01LeftForTheNext TestLTWarmReuse", "LT-05": "TestLT01LeftForTheNext TestLTWarmReuse", "LT-09": "TestLT09LateFinalisers",
	"LT-11": "TestRS44CallerGoesAway TestRS45Churn driver/process:TestSupervisorDies", "LT-14": noSessions,
}

var outputs = map[string]string{
	"OU-01": "TestOU01ScreenControl TestOU01OnATerminal", "OU-02": "TestOU02Clipboard TestOU02ClipboardInEightBits TestOU01OnATerminal",
	"OU-04": "TestOU01ScreenControl",
	"OU-06": "TestOU06Tags", "OU-07": "TestOU06Tags", "OU-08": "TestOU06Tags", "OU-09": "TestOU09Controls",
	"OU-10": "TestOU10InvalidUTF8",
	"OU-13": "TestOU13Orders", "OU-14": "TestOU14ForgedMarkers", "OU-16": "TestOU13Orders",
	"OU-18": "TestOU14ForgedMarkers",
	"OU-19": "TestOU10InvalidUTF8", "OU-21": "TestOU21CutInTheMiddle", "OU-23": "TestOU23Streams",
	"OU-24": "TestOU14ForgedMarkers",
	"AU-01": "TestCF11WordsAreData TestFS25HostileNames", "AU-07": "TestAU07ARecordForEveryEnd TestRS44CallerGoesAway",
	"AU-04": "internal/brokerd:TestCanary internal/broker:TestSecretIsAMark",
}

var doors = map[string]string{
	"CF-01": "TestCF01MissingPieces internal/cgroup:TestVersion2Missing", "CF-03": "TestCF01MissingPieces",
	"CF-04": "policy:TestPairsOfOptions TestCF04StrongerRungs",
	"CF-05": "cmd/glovebox:TestBadConfiguration policy:TestRefusedRequests", "CF-06": noRules, "CF-10": noDoors,
	"CF-11": "TestCF11WordsAreData",
	"CF-15": "TestCF04StrongerRungs policy:TestRungs", "LG-06": "TestLG06ResultsThatExecute",
	"LG-02": "TestKS17OtherNumbering TestCR07Attach",
	"LG-08": "TestCF11WordsAreData",
}

var controls = map[string]string{
	"CT-01": "TestCT01Python", "CT-02": "TestCT01Python", "CT-04": "TestCT04Shell", "CT-05": "TestCT05ToolChains",
	"CT-07": "TestCT01Python",
	"CT-08": "TestCT01Python", "CT-09": "TestCT09Servers", "CT-10": "TestCT10Ends",
	"CT-11": "TestCT11JustUnderTheLimits TestPairsUnderTheLimits",
	"CT-13": "TestCT05ToolChains",
}

func merge(parts ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, p := range parts {
		maps.Copy(all, p)
	}
	return all
}

// TestTable demands a line for every entry that is required, a test for every line that names one, and a user for every
// program; and prints what has no program yet.
func TestTable(t *testing.T) {
	entries := strings.Fields(required)
	for _, id := range entries {
		if outcomes[id] == "" {
			t.Errorf("%s has neither a test nor a reason", id)
		}
	}
	if twice := len(entries) - len(slices.Compact(slices.Sorted(slices.Values(entries)))); twice > 0 {
		t.Errorf("%d entries are listed twice", twice)
	}
	known := map[string][]string{}
	held, reasons := 0, map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(outcomes)) {
		line := outcomes[id]
		if !strings.Contains(line, "Test") || strings.HasPrefix(line, "not built") || strings.HasPrefix(line, "fails") {
			reasons[line] = append(reasons[line], id)
			continue
		}
		held++
		for _, name := range strings.Fields(line) {
			dir, test, elsewhere := strings.Cut(name, ":")
			if !elsewhere {
				dir, test = "attack", name
			}
			if known[dir] == nil {
				known[dir] = testsIn(t, filepath.Join("..", dir))
			}
			if !slices.Contains(known[dir], test) {
				t.Errorf("%s names %s, which %s does not have", id, test, dir)
			}
		}
	}
	fmt.Printf("    battery: %d entries have tests, %d have none yet:\n", held, len(outcomes)-held)
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Printf("    %s: %s\n", strings.Join(reasons[reason], " "), reason)
	}
}

func testsIn(t *testing.T, dir string) []string {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	names := []string{}
	for _, p := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

// TestProgramsSayWhatTheyAre demands that each program begins with a comment that says what it does, names entries of the
// table only, and is run by something.
func TestProgramsSayWhatTheyAre(t *testing.T) {
	var code strings.Builder
	sources, _ := filepath.Glob("*.go")
	for _, p := range sources {
		code.WriteString(read(p))
	}
	programs, err := os.ReadDir("programs")
	if err != nil || len(programs) == 0 {
		t.Fatalf("no programs: %v", err)
	}
	id := regexp.MustCompile(`\b(?:[A-Z]{2}-\d\d|BL-\d{3})\b`)
	for _, p := range programs {
		first, second, _ := strings.Cut(read(filepath.Join("programs", p.Name())), "\n")
		if strings.HasPrefix(first, "#!") {
			first, _, _ = strings.Cut(second, "\n")
		}
		if !strings.HasPrefix(first, "# ") && !strings.HasPrefix(first, "// ") {
			t.Errorf("%s does not say what it does", p.Name())
		}
		for _, entry := range id.FindAllString(first, -1) {
			if outcomes[entry] == "" {
				t.Errorf("%s names %s, which is not in the table", p.Name(), entry)
			}
		}
		if !strings.Contains(code.String(), p.Name()+`"`) {
			t.Errorf("nothing runs %s", p.Name())
		}
	}
}
