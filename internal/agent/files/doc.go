// Package files serves the files of a sandbox, in two ways that share everything below their requests: the resolution of paths (tree.go), the
// walk and its pages (list.go), the description of files and the codes of errors (entry.go), writing aside (write.go), copies and removals
// (change.go), and archives (tar.go, untar.go). Any entry may be a link, a pipe or a device, and user code may replace it at any time.
//
// A Workspace is the way of jobs. The agent serves it, and Put writes the agent's own files. A Server is the way of the live path, in a process that
// the agent starts as it starts user code (ADR 13).
//
// What differs is meant:
//
//   - Who serves. The agent may do what user code may not, so it must not follow a path out of the workspace. The process may do
//     what user code may, so the kernel decides, also in /proc. It has no way to the agent: its requests come over a descriptor, and the agent reads
//     its answers as it would those of user code, which may kill or replace it.
//   - Paths. A Workspace has a tree as its root: relative paths, resolved element by element, by no link or ".." out of it. A link with an absolute
//     target leads out, too. os.Root cannot stand for it: under gVisor it follows links (see tree). A Server has the root anywhere: absolute paths as
//     the kernel resolves them. Archives of both are unpacked into a tree.
//   - Links at the end of a path. A Workspace replaces them, a Server writes to what they lead to.
//   - Where files are written aside. A Workspace has one staging directory in its top, and makes the directories above a file once its content
//     is complete: an interrupted upload leaves nothing. A Server writes beside the file, on its file system, and makes them before.
//   - Fences. Changes of the Workspace are jobs, in line with the others. Those of a Server happen at once, so a write can name the version that it
//     replaces; the process has one lock for it. Against user code holds only that there is no file.
//   - Modes. A Workspace gives 0644 unless one is named, a Server that of the file that is there. The workspace's entries and archives have no
//     bits beyond 0777, and its archives 0755 for directories and no links.
//   - Limits. A Workspace is listed in pages of 100,000 entries, as deep as it is; one is one job. A Server lists 10,000, at most
//     farm.MaxFSDepth deep, stays out of file systems that are the kernel's own, and sends contents and archives in pieces of agent.PieceBytes,
//     since its callers may be slow.
//   - Errors. Those of a Server begin with the kernel's name of them.
package files
