package attack_test

// reported are faults that users of other sandboxes reported, by what holds the same kind of fault here.
var reported = map[string]string{
	// time-outs, survivors, hangs
	"BL-001": "TestRS07DetachedChildWithoutPipes TestRS02Sleep", "BL-006": "TestRS06DetachedChildKeepsPipes",
	"BL-008": "TestRS06DetachedChildKeepsPipes", "BL-009": "TestRS06DetachedChildKeepsPipes",
	"BL-011": "TestRS02Sleep TestRS09DeafToSignals",
	"BL-012": "TestRS10StopItself", "BL-013": "TestRS01BusyLoop", "BL-014": "TestRS02Sleep", "BL-016": "TestRS02Sleep",
	"BL-017": "TestRS01BusyLoop TestRS12Memory", "BL-020": "TestRS31NoInput",
	"BL-021": "TestRS31NoInput TestCR17Terminal",
	"BL-022": "TestRS31NoInput", "BL-025": noSessions, "BL-026": noSessions, "BL-028": noSessions,
	"BL-029": "TestCT10Ends",
	"BL-030": "TestCT04Shell", "BL-031": "TestRS02Sleep policy:TestDefaults", "BL-033": noSessions,
	"BL-034": noSessions,
	"BL-035": "TestRP035FewProcesses",

	// memory, processes, disk
	"BL-036": "TestRS12Memory", "BL-038": "TestRS12Memory", "BL-040": "TestRP040RefusedAllocation",
	"BL-041": "TestRP041StaticArray",
	"BL-042": "TestRP042TinyLimits policy:TestLimitEdges", "BL-043": "TestRS12Memory", "BL-045": "TestRS12Memory",
	"BL-047": "TestRS12Memory", "BL-049": "TestRS12Memory", "BL-050": "TestCT01Python TestRS13MemoryThroughFiles",
	"BL-051": "TestRS03ForkBomb", "BL-052": "TestRS05DefaultProcessLimit",
	"BL-053": "internal/cgroup:TestVersion2Missing TestRS03ForkBomb",
	"BL-055": "TestRS23Flood", "BL-056": "TestIL13Processors", "BL-057": "TestIL13Processors",
	"BL-059": "TestRS20ManySpinners",
	"BL-061": "TestRS44CallerGoesAway", "BL-062": "TestRS45Churn",
	"BL-065": "not built: a server; each run is a process of its own",

	// output and encoding
	"BL-066": "TestRS24BothStreams", "BL-068": "TestRS26EdgeOfTheOutputLimit", "BL-070": "TestOU10InvalidUTF8",
	"BL-072": "TestOU10InvalidUTF8",
	"BL-073": "TestOU10InvalidUTF8", "BL-074": "TestOU10InvalidUTF8", "BL-076": "TestRS23Flood",
	"BL-077": "TestRS23Flood",
	"BL-078": "TestRS23Flood", "BL-080": "TestRP080StopAFlood", "BL-081": "TestRS24BothStreams",
	"BL-083": "TestOU01ScreenControl TestOU01OnATerminal",
	"BL-084": "TestOU09Controls TestOU01OnATerminal", "BL-085": "TestOU10InvalidUTF8", "BL-086": "TestOU23Streams",
	"BL-087": "TestOU23Streams",

	// files and artifacts
	"BL-088": "TestFS06ArtifactLinks", "BL-090": "TestFS08SwapWhileCollected",
	"BL-092": "TestFS06ArtifactLinks TestFS09InputNames",
	"BL-093": "TestFS12LinksEverywhere", "BL-094": "TestFS12LinksEverywhere", "BL-095": "TestFS28PipeAsArtifact",
	"BL-096": "TestFS28PipeAsArtifact",
	"BL-097": "TestFS35MovedRules TestFS06ArtifactLinks", "BL-099": noArchives, "BL-100": "TestFS09InputNames",
	"BL-101": "TestCT10Ends",
	"BL-104": "TestRP104Litter", "BL-105": "TestCT05ToolChains", "BL-107": "TestCT05ToolChains",

	// fence, policy, credentials, network
	"BL-109": noRules, "BL-110": noRules, "BL-111": noRules, "BL-112": noRules, "BL-113": noRules,
	"BL-114": "TestNT02Names", "BL-115": "internal/netlab:TestBattery",
	"BL-118": "TestCF01MissingPieces", "BL-119": noDoors, "BL-120": "internal/netlab:TestBattery", "BL-121": "TestNT02Names",
	"BL-123": "TestCR10Services TestNT12UnixSockets",
	"BL-124": "TestKS01RefusedCalls TestFS04Descriptors", "BL-125": "TestKS17OtherNumbering",
	"BL-128": "TestCT01Python TestKS17OtherNumbering",
	"BL-131": "policy:TestPairsOfOptions", "BL-132": "internal/cgroup:TestVersion2Missing",
	"BL-133": "TestCR01Environment",
	"BL-134": "TestCR01Environment", "BL-136": "TestFS04Descriptors", "BL-138": "TestFS01PlainPaths TestCR10Services",
	"BL-139": "internal/brokerd:TestPlaceholder",
	"BL-140": "TestCR17Terminal", "BL-141": "TestRS44CallerGoesAway driver/process:TestSupervisorDies",
	"BL-143": "TestCF11WordsAreData",
	"BL-144": "TestCF01MissingPieces", "BL-145": "TestRS42BuildStep", "BL-147": "TestLT01LeftForTheNext",
	"BL-148": "TestLT01LeftForTheNext TestCR01Environment TestFS01PlainPaths",
	"BL-152": "TestKS17OtherNumbering TestCR07Attach",
	"BL-154": "TestCT05ToolChains", "BL-155": "TestCF11WordsAreData", "BL-157": "TestNT01Out",
	"BL-158": "TestRP158NotebookSyntax",
	"BL-159": "TestRP159MissingLanguage", "BL-161": "TestCT04Shell",
}
