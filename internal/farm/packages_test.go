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

func TestDistributionOf(t *testing.T) {
	t.Parallel()
	for module, want := range map[string]string{
		"PIL": "pillow", "cv2": "opencv-python-headless", "sklearn": "scikit-learn", "bs4": "beautifulsoup4", "yaml": "pyyaml", "dateutil": "python-dateutil",
		"skimage": "scikit-image", "fitz": "pymupdf", "docx": "python-docx", "pptx": "python-pptx", "dotenv": "python-dotenv", "jwt": "pyjwt", "serial": "pyserial",
		"Crypto": "pycryptodome", "OpenSSL": "pyopenssl", "usb": "pyusb", "google.protobuf.message": "protobuf", "google.cloud.storage": "google-cloud-storage",
		"attr": "attrs", "magic": "python-magic", "git": "gitpython", "MySQLdb": "mysqlclient", "psycopg2": "psycopg2-binary", "lxml": "lxml", "requests": "requests",
		"ruamel.yaml": "ruamel-yaml", "azure.storage.blob": "azure-storage-blob", "google.oauth2.credentials": "google-auth",
	} {
		if got := farm.DistributionOf(module); got != want {
			t.Errorf("%s is in %s, want %s", module, got, want)
		}
	}
}
