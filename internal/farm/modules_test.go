package farm_test

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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
