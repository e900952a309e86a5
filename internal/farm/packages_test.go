package farm_test

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestRequirementName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ manager, text, name string }{
		{"pip", "six", "six"},
		{"pip", "Python_DateUtil", "python-dateutil"},
		{"pip", "zope.interface", "zope-interface"},
		{"pip", "a--b__c..d", "a-b-c-d"},
		{"pip", "pandas>=2", "pandas"},
		{"pip", "Requests [socks, use_chardet] >= 2, < 3", "requests"},
		{"pip", "numpy==1.26.*", "numpy"},
		{"pip", "torch==2.1.0+cpu", "torch"},
		{"pip", "x===1.0", "x"},
		{"npm", "left-pad", "left-pad"},
		{"npm", "@types/node@20", "@types/node"},
		{"npm", "lodash@^4.17.0", "lodash"},
		{"npm", "lodash@latest", "lodash"},
		{"pip", "", ""},
		{"pip", " six", ""},
		{"pip", "six ", ""},
		{"pip", "-six", ""},
		{"pip", "six-", ""},
		{"pip", "--index-url=x", ""},
		{"pip", "-r /etc/passwd", ""},
		{"pip", "../x", ""},
		{"pip", "./x", ""},
		{"pip", "/tmp/x.whl", ""},
		{"pip", "git+https://example.com/x.git", ""},
		{"pip", "six @ https://example.com/six.whl", ""},
		{"pip", "six; rm -rf /", ""},
		{"pip", "six;python_version<'3'", ""},
		{"pip", "six\n--pre", ""},
		{"pip", "six\n", ""},
		{"pip", "six==", ""},
		{"pip", "six>=1,", ""},
		{"pip", "sıx", ""},
		{"npm", "-g", ""},
		{"npm", "--prefix=/x", ""},
		{"npm", "@-a/b", ""},
		{"npm", "file:../x", ""},
		{"npm", "user/repo", ""},
		{"npm", "x@file:../y", ""},
		{"npm", "x@https://example.com/x.tgz", ""},
		{"npm", "x@npm:y", ""},
		{"npm", "../x", ""},
		{"npm", "X", ""},
	} {
		name, ok := farm.RequirementName(c.manager, c.text)
		if name != c.name || ok != (c.name != "") {
			t.Errorf("RequirementName(%s, %q) = %q, %v; want %q", c.manager, c.text, name, ok, c.name)
		}
	}
}
