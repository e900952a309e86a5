package wire

import "time"

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
