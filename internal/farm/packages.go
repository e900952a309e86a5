package farm

import (
	"regexp"
	"strings"
)

// The package managers.
const (
	ManagerPip = "pip" // Python packages, whatever program installs them
	ManagerNpm = "npm"
)

// InstallRequest installs packages. The API has validated them.
type InstallRequest struct {
	Manager  string   `json:"manager"`
	Packages []string `json:"packages"` // as requested, such as "numpy" or "pandas>=2"
}

// InstallResult is the outcome of an install: one entry for each requested package, in that order.
type InstallResult struct {
	Packages  []PackageOutcome `json:"packages"`
	Stdout    string           `json:"stdout"`
	Stderr    string           `json:"stderr"`
	Truncated Truncated        `json:"truncated"`
	Dropped   Dropped          `json:"dropped,omitzero"`
}

// PackageStatus is the status of a package in a sandbox.
type PackageStatus string

// The statuses of the contract.
const (
	PackageInstalling PackageStatus = "installing" // an unfinished job installs it
	PackageInstalled  PackageStatus = "installed"  // it is installed, by the image or by a job
	PackageFailed     PackageStatus = "failed"     // its last install did not succeed
	PackageNotFound   PackageStatus = "not_found"  // it is not installed, and no job tried to install it
)

// PackageOutcome is the outcome of one requested package.
type PackageOutcome struct {
	Name      string        `json:"name"`      // normalised, see NormalPackage
	Requested string        `json:"requested"` // as requested; of an automatic install, what the code imports
	Version   string        `json:"version,omitempty"`
	Status    PackageStatus `json:"status"`            // installed or failed
	Message   string        `json:"message,omitempty"` // why it failed, or what the caller should know, in a sentence
	Why       string        `json:"why,omitempty"`     // of an automatic install: what needed it, in a few words
}

// Package is a package that is installed in a sandbox.
type Package struct {
	Name    string `json:"name"` // normalised, see NormalPackage
	Version string `json:"version"`
	Manager string `json:"manager"`
}

// Forms of requirements.
var (
	// pipForm is the part of PEP 508 that names a distribution, its extras and its versions: no address, no option, no marker.
	pipForm = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)` +
		`(?: *\[ *[A-Za-z0-9._-]+(?: *, *[A-Za-z0-9._-]+)* *\])?` +
		`(?: *(?:===|==|~=|!=|<=|>=|<|>) *[A-Za-z0-9.*+!_-]+(?: *, *(?:===|==|~=|!=|<=|>=|<|>) *[A-Za-z0-9.*+!_-]+)*)?$`)
	npmForm = regexp.MustCompile(`^((?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*)(?:@[A-Za-z0-9^~<>=.*+_-]+)?$`)
)

// RequirementName returns the normalised name in a requirement, such as "pandas>=2" or "@types/node@20". ok is false for anything that an
// installer could read as more than a name and versions.
func RequirementName(manager, requirement string) (name string, ok bool) {
	form := pipForm
	if manager == ManagerNpm {
		form = npmForm
	}
	m := form.FindStringSubmatch(requirement)
	if m == nil {
		return "", false
	}
	return NormalPackage(manager, m[1]), true
}

// separators are the runs of characters that PEP 503 treats as one.
var separators = regexp.MustCompile(`[-_.]+`)

// NormalPackage normalises a package's name for comparison: PEP 503 for pip; npm names have one spelling.
func NormalPackage(manager, name string) string {
	if manager == ManagerNpm {
		return name
	}
	return strings.ToLower(separators.ReplaceAllString(name, "-"))
}

// DistributionOf returns the Python package of an index that contains a module, such as opencv-python-headless for cv2. Most have the same name; for parts of a namespace package the
// longest known name wins.
func DistributionOf(module string) string {
	for name := module; ; {
		if dist := distributionAlias(name); dist != "" {
			return dist
		}
		i := strings.LastIndexByte(name, '.')
		if i < 0 {
			break
		}
		name = name[:i]
	}
	if parts := strings.Split(module, "."); len(parts) > 1 { // google.cloud.storage is in google-cloud-storage
		return strings.Join(parts, "-")
	}
	return module
}

// distributionAlias returns the distribution of a module if its name differs; empty if unknown. For OpenCV it is the headless one: a sandbox
// has no display, and the other one needs display libraries.
func distributionAlias(module string) string {
	return map[string]string{
		"absl": "absl-py", "attr": "attrs", "barcode": "python-barcode", "Bio": "biopython", "bs4": "beautifulsoup4",
		"cairo": "pycairo", "community": "python-louvain", "cpuinfo": "py-cpuinfo", "Crypto": "pycryptodome",
		"Cryptodome": "pycryptodomex", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
		"decouple": "python-decouple", "discord": "discord-py", "dns": "dnspython", "docx": "python-docx",
		"dotenv": "python-dotenv", "engineio": "python-engineio", "faiss": "faiss-cpu", "ffmpeg": "ffmpeg-python",
		"fitz": "pymupdf", "gi": "pygobject", "git": "gitpython", "github": "pygithub", "gitlab": "python-gitlab",
		"google.oauth2": "google-auth", "google.protobuf": "protobuf", "googleapiclient": "google-api-python-client",
		"grpc": "grpcio", "hydra": "hydra-core", "imblearn": "imbalanced-learn", "imwatermark": "invisible-watermark",
		"jose": "python-jose", "jwt": "pyjwt", "kafka": "kafka-python", "ldap": "python-ldap", "magic": "python-magic",
		"memcache": "python-memcached", "mpl_toolkits": "matplotlib", "multipart": "python-multipart",
		"mysql": "mysql-connector-python", "MySQLdb": "mysqlclient", "nacl": "pynacl", "nmap": "python-nmap", "odf": "odfpy",
		"OpenGL": "pyopengl", "OpenSSL": "pyopenssl", "osgeo": "gdal", "PIL": "pillow", "pkg_resources": "setuptools",
		"pptx": "python-pptx", "psycopg2": "psycopg2-binary", "pwn": "pwntools", "pylab": "matplotlib",
		"pythoncom": "pywin32", "pythonjsonlogger": "python-json-logger", "pywt": "pywavelets",
		"rest_framework": "djangorestframework", "serial": "pyserial", "shapefile": "pyshp", "skimage": "scikit-image",
		"sklearn": "scikit-learn", "sklearn_extra": "scikit-learn-extra", "skopt": "scikit-optimize",
		"sksparse": "scikit-sparse", "slugify": "python-slugify", "snappy": "python-snappy", "socketio": "python-socketio",
		"speech_recognition": "speechrecognition", "stl": "numpy-stl", "talib": "ta-lib", "telegram": "python-telegram-bot",
		"tlz": "toolz", "umap": "umap-learn", "usb": "pyusb", "vlc": "python-vlc", "websocket": "websocket-client",
		"whois": "python-whois", "win32api": "pywin32", "win32com": "pywin32", "wx": "wxpython", "xdg": "pyxdg",
		"Xlib": "python-xlib", "yaml": "pyyaml", "zmq": "pyzmq",
	}[module]
}
