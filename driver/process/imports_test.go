package process

import "testing"

// TestImports: what code imports was loaded for it and counts as its own; what it only mentions does not.
func TestImports(t *testing.T) {
	for code, want := range map[string]bool{
		"import pandas": true, "import pandas as pd\nprint(1)": true, "import os, pandas": true, "from pandas import DataFrame": true,
		"import pandas.io": true, "  import pandas\n": true, "import os; import pandas\n": true, "try: pass\nfinally: pass\nfrom pandas.io import x": true,
		"": false, "# pandas": false, "print('pandas')": false, "import pandas_": false, "import mypandas": false,
		"important pandas": false, "x = 'import'\npandas": false,
	} {
		if got := imports([]byte(code), "pandas"); got != want {
			t.Errorf("%q: %v", code, got)
		}
	}
}
