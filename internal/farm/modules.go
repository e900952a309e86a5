package farm

import "strings"

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
