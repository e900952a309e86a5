package wire

import (
	"time"
)

// FSEntry is a file or directory anywhere in a sandbox.
type FSEntry struct {
	Path       string            `json:"path" doc:"absolute path"`
	Type       string            `json:"type" doc:"what it is" enum:"file,dir,symlink,other"`
	Size       int64             `json:"size" doc:"bytes of a file; 0 for anything else"`
	DirSize    int64             `json:"-"` // of a directory, as its file system counts: the SDKs of E2B show it
	Mode       string            `json:"mode" doc:"permissions, four octal digits"`
	UID        int               `json:"uid" doc:"user id of the owner"`
	GID        int               `json:"gid" doc:"id of the owner's group"`
	ModifiedAt time.Time         `json:"modified_at" doc:"last change of the content"`
	Target     *string           `json:"target" doc:"what a symbolic link leads to, as it is written; null for anything else"`
	Metadata   map[string]string `json:"-"` // the SDKs of E2B show it; nil: there is none
	ETag       string            `json:"etag" doc:"names this version, for If-Match and If-None-Match"`
}

// FSListing is a page of a listing.
type FSListing struct {
	Items      []FSEntry `json:"items" doc:"by name in each directory, a directory before what is in it"`
	NextCursor Cursor    `json:"next_cursor" doc:"send it as cursor to get the next page; null: this is the last"`
	Note       string    `json:"note" doc:"what the caller should know, such as what the listing leaves out; usually empty"`
}

// FSMove names a file or directory, and what it becomes.
type FSMove struct {
	From string `json:"from" doc:"path: absolute, or relative to the workspace"`
	To   string `json:"to" doc:"new path; directories above it are created, a file there is replaced, a directory is not"`
}

// FSLink is a symbolic link to make.
type FSLink struct {
	Path   string `json:"path" doc:"path of the link: absolute, or relative to the workspace"`
	Target string `json:"target" doc:"what the link leads to; it may be anything, also nothing"`
}

// FSChange is a change of what a file is, not of its content: of one or both.
type FSChange struct {
	Mode       string     `json:"mode,omitempty" doc:"permissions in octal digits, such as 0755"`
	ModifiedAt *time.Time `json:"modified_at,omitempty" doc:"time of the last change of the content, from 1970 to 2262"`
}

// WatchReady is the data of the first event of a watch: changes are reported from now on.
type WatchReady struct {
	Path        string `json:"path" doc:"what is watched"`
	Directories int    `json:"directories" doc:"how many directories that are now"`
}

// FileChange is the data of the events created, changed, removed and renamed.
type FileChange struct {
	Path string  `json:"path" doc:"absolute path"`
	Type string  `json:"type" doc:"file stands for anything but a directory" enum:"file,dir"`
	From *string `json:"from" doc:"renamed: the path before; otherwise null"`

	Metadata bool `json:"metadata" doc:"changed: only the mode, owner or times have changed, not the content"`
}

// ChangesDropped is the data of the event dropped: something happened that no event tells.
type ChangesDropped struct {
	Reason string `json:"reason" doc:"why"`
}

// Artifact is a file that a job made. Its link works without credentials until it expires; every read makes a new link.
type Artifact struct {
	ID          string    `json:"id" doc:"id of the artifact"`
	SandboxID   string    `json:"sandbox_id" doc:"the sandbox it was made in"`
	JobID       string    `json:"job_id" doc:"the job that made it"`
	Name        string    `json:"name" doc:"last element of the path"`
	Path        string    `json:"path" doc:"path relative to the workspace"`
	Size        int64     `json:"size" doc:"bytes"`
	ContentType string    `json:"content_type" doc:"media type"`
	SHA256      string    `json:"sha256" doc:"SHA-256 of the bytes, in hex"`
	CreatedAt   time.Time `json:"created_at" doc:"when it was stored"`
	ExpiresAt   time.Time `json:"expires_at" doc:"when it will be removed"`
	URL         string    `json:"url" doc:"presigned link; it expires"`
}

// FileEntry is a file or directory of the workspace.
type FileEntry struct {
	Path       string    `json:"path" doc:"path relative to the workspace"`
	Size       int64     `json:"size" doc:"bytes"`
	Mode       string    `json:"mode" doc:"permissions, four octal digits"`
	ModifiedAt time.Time `json:"modified_at" doc:"last change of the content"`
	Type       string    `json:"type" doc:"what it is" enum:"file,dir,symlink,other"`
}

// Files is a page of a listing of the workspace, or what an upload has written.
type Files struct {
	Items      []FileEntry `json:"items" doc:"files and directories: by name in each directory, a directory before what is in it"`
	NextCursor Cursor      `json:"next_cursor" doc:"send it as cursor to get the next page; null: this is the last"`
	Note       string      `json:"note" doc:"what the caller should know, such as what a listing leaves out; usually empty"`
}

// Link is a presigned link.
type Link struct {
	URL string `json:"url" doc:"presigned link; it expires"`
}

// LeftOutTrailer is the HTTP trailer of a directory that is read as a tar or a zip: how many files and directories are not in it, since they
// cannot be read, are neither files, directories nor symbolic links, have a name that is not UTF-8 or too long, or more than limits.max_file_bytes.
const LeftOutTrailer = "Sandfarm-Left-Out"
