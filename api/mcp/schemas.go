package mcp

// Schemas of structured content. Each is an object with a description for every field and without lists of types, which some
// clients refuse. The tests check every answer against its schema. They are not generated from Go types: mcp-go's generator makes
// {"type":["null","array"]} of a slice and cannot express "anyOf" of error and null.

const artifactSchema = `{"type":"object","description":"a file that the run made or changed","properties":{
	"id":{"type":"string","description":"id of the artifact, art_…"},
	"name":{"type":"string","description":"last element of the path"},
	"path":{"type":"string","description":"path in the workspace"},
	"size":{"type":"integer","description":"bytes"},
	"content_type":{"type":"string","description":"media type"},
	"sha256":{"type":"string","description":"SHA-256 of the bytes, in hex"},
	"url":{"type":"string","description":"link that downloads the file without credentials; it expires"}
},"required":["id","name","path","size","content_type","sha256","url"]}`

const errorSchema = `{"description":"the exception that ended the code; null: none","anyOf":[{"type":"null"},{"type":"object","properties":{
	"name":{"type":"string","description":"class of the exception; KernelDied or OutOfMemory when the kernel ended; OutputLimitExceeded when on_output_limit stopped the code"},
	"value":{"type":"string","description":"text of the exception"},
	"traceback":{"type":"array","items":{"type":"string"},"description":"lines of the traceback"}
},"required":["name","value","traceback"]}]}`

const outcomeSchema = `{"type":"object","description":"status of one package","properties":{
	"name":{"type":"string","description":"normalised name"},
	"requested":{"type":"string","description":"what was asked for"},
	"status":{"type":"string","description":"status","enum":["installing","installed","failed","not_found"]},
	"version":{"type":"string","description":"the installed version; empty: none, or not known yet"},
	"message":{"type":"string","description":"why it failed, or a note"}
},"required":["name","requested","status","version","message"]}`

// runFields are the fields of a run other than job_id, sandbox_id and state. They are set once the work has ended.
const runFields = `
	"stdout":{"type":"string","description":"what was printed; over 1 MiB head and tail"},
	"stderr":{"type":"string","description":"what was written to standard error; over 1 MiB head and tail"},
	"exit_code":{"type":"integer","description":"0; 1 for an exception; N after exit(N); 128+signal for a kill"},
	"error":` + errorSchema + `,
	"artifacts":{"type":"array","description":"every file of the workspace that is new or changed","items":` + artifactSchema + `},
	"truncated":{"type":"object","description":"which streams were cut; the whole is an artifact then","properties":{
		"stdout":{"type":"boolean","description":"stdout was cut"},"stderr":{"type":"boolean","description":"stderr was cut"}},"required":["stdout","stderr"]},
	"dropped_bytes":{"type":"object","description":"only if output was dropped: bytes beyond the farm's limit, which are kept nowhere","properties":{
		"stdout":{"type":"integer","description":"bytes of stdout"},"stderr":{"type":"integer","description":"bytes of stderr"}},"required":["stdout","stderr"]},
	"kernel_restarted":{"type":"boolean","description":"the kernel is a new one: variables are gone"},
	"message":{"type":"string","description":"why it did not complete, and notes"},
	"installed":{"type":"array","description":"packages that were installed for the code","items":` + outcomeSchema + `}`

const resultsField = `
	"results":{"type":"array","description":"displayed values that were not cleared, in their last state, without the pictures that are image blocks of the answer","items":{"type":"object","properties":{
		"display":{"type":"integer","description":"number of the displayed value, from 0; entries of one value share it"},
		"mime":{"type":"string","description":"MIME type"},
		"data":{"type":"string","description":"the value: text as it is, anything else base64"},
		"url":{"type":"string","description":"link to a large value"}},"required":["display","mime"]}}`

const jobFields = `
	"job_id":{"type":"string","description":"id of the job, job_…, for get_job_result"},
	"sandbox_id":{"type":"string","description":"id of the sandbox"},
	"state":{"type":"string","description":"state of the job; code that raised is completed","enum":["queued","running","completed","failed","timed_out","canceled","lost"]}`

const packagesField = `
	"packages":{"type":"array","description":"one entry for each package that was asked for","items":` + outcomeSchema + `}`

const runSchema = `{"type":"object","properties":{` + jobFields + `,` + runFields + `,` + resultsField + `},"required":["job_id","sandbox_id","state"]}`

const commandSchema = `{"type":"object","properties":{` + jobFields + `,` + runFields + `},"required":["job_id","sandbox_id","state"]}`

const installSchema = `{"type":"object","properties":{` + jobFields + `,` + packagesField + `,
	"message":{"type":"string","description":"why it did not complete, or a note"}},"required":["job_id","sandbox_id","state","packages"]}`

const jobSchema = `{"type":"object","properties":{` + jobFields + `,
	"kind":{"type":"string","description":"what the job does: create, execute, command, install, file, run, close, interrupt or restart"},` +
	runFields + `,` + resultsField + `,` + packagesField + `},"required":["job_id","sandbox_id","kind","state"]}`

const stoppedSchema = `{"type":"object","properties":{` + jobFields + `,
	"kind":{"type":"string","description":"what the job does: execute, command, install, create, restart and so on"}},"required":["job_id","sandbox_id","kind","state"]}`

const sandboxState = `{"type":"string","description":"state of the sandbox; ready and busy take work at once, queued and starting soon","enum":["queued","starting","ready","busy","hibernated","closing","closed","expired","failed","lost"]}`

const createSchema = `{"type":"object","properties":{
	"sandbox_id":{"type":"string","description":"id of the new sandbox, sbx_…, for all other tools"},
	"name":{"type":"string","description":"name that was given; empty: none"},
	"state":` + sandboxState + `,
	"image":{"type":"string","description":"name of its image"},
	"expires_at":{"type":"string","description":"when it ends at the latest, RFC 3339"},
	"job_id":{"type":"string","description":"id of the job that creates it"},` + packagesField + `
},"required":["sandbox_id","name","state","image","expires_at","job_id"]}`

const listSchema = `{"type":"object","properties":{"sandboxes":{"type":"array","description":"the open sandboxes, newest first","items":{"type":"object","properties":{
	"sandbox_id":{"type":"string","description":"id of the sandbox, sbx_…"},
	"name":{"type":"string","description":"name that was given; empty: none"},
	"state":` + sandboxState + `,
	"image":{"type":"string","description":"name of its image"},
	"created_at":{"type":"string","description":"when it was requested, RFC 3339"},
	"expires_at":{"type":"string","description":"when it ends at the latest, RFC 3339"}
},"required":["sandbox_id","name","state","image","created_at","expires_at"]}}},"required":["sandboxes"]}`

const statusFields = `
	"name":{"type":"string","description":"normalised name of the package"},
	"status":{"type":"string","description":"installing: a job installs it; installed: it can be imported; failed: message says why; not_found: it is neither installed nor requested","enum":["installing","installed","failed","not_found"]},
	"version":{"type":"string","description":"the installed version; empty: none"},
	"manager":{"type":"string","description":"package manager","enum":["pip","npm"]},
	"job_id":{"type":"string","description":"the job that installs it, or did last; empty: none"},
	"message":{"type":"string","description":"why it failed, or a note; empty: none"}`

const statusSchema = `{"type":"object","properties":{
	"sandbox_id":{"type":"string","description":"id of the sandbox"},` + statusFields + `
},"required":["sandbox_id","name","status","version","manager","job_id","message"]}`

const statusesSchema = `{"type":"object","properties":{
	"sandbox_id":{"type":"string","description":"id of the sandbox"},
	"packages":{"type":"object","description":"status of each package, by the name that was given","additionalProperties":{"type":"object","properties":{` + statusFields + `,
	"installed":{"type":"boolean","description":"it can be imported"}},"required":["name","status","version","manager","job_id","message","installed"]}}
},"required":["sandbox_id","packages"]}`

const uploadSchema = `{"type":"object","properties":{
	"sandbox_id":{"type":"string","description":"id of the sandbox"},
	"path":{"type":"string","description":"path of the file in the workspace"},
	"size":{"type":"integer","description":"bytes that were written"},
	"sha256":{"type":"string","description":"SHA-256 of the bytes, in hex"}
},"required":["sandbox_id","path","size","sha256"]}`

const filesSchema = `{"type":"object","properties":{
	"sandbox_id":{"type":"string","description":"id of the sandbox"},
	"files":{"type":"array","description":"files and directories, sorted by path","items":{"type":"object","properties":{
		"path":{"type":"string","description":"path in the workspace"},
		"size":{"type":"integer","description":"bytes"},
		"mode":{"type":"string","description":"permissions, four octal digits"},
		"modified_at":{"type":"string","description":"last change, RFC 3339"},
		"type":{"type":"string","description":"what it is","enum":["file","dir","symlink","other"]}
	},"required":["path","size","mode","modified_at","type"]}},
	"truncated":{"type":"boolean","description":"the list is incomplete: list a subdirectory"}
},"required":["sandbox_id","files","truncated"]}`

const downloadSchema = `{"type":"object","properties":{
	"sandbox_id":{"type":"string","description":"id of the sandbox"},
	"path":{"type":"string","description":"path of the file in the workspace"},
	"size":{"type":"integer","description":"bytes"},
	"content_type":{"type":"string","description":"media type"},
	"url":{"type":"string","description":"link that downloads the file without credentials; it expires"},
	"local_path":{"type":"string","description":"path on the caller's machine, if it was saved there"}
},"required":["sandbox_id","path","size","content_type","url"]}`

const closeSchema = `{"type":"object","properties":{
	"sandbox_id":{"type":"string","description":"id of the sandbox"},
	"state":{"type":"string","description":"closed, or closing while that takes place","enum":["closing","closed"]}
},"required":["sandbox_id","state"]}`

const processFields = `
	"sandbox_id":{"type":"string","description":"id of the sandbox"},
	"process_id":{"type":"string","description":"id of the process, prc_…, for read_process and stop_process"},
	"state":{"type":"string","description":"whether it runs","enum":["running","exited"]},
	"exit_code":{"type":"integer","description":"once it has exited: its exit code; 128+signal for a kill"}`

const processSchema = `{"type":"object","properties":{` + processFields + `},"required":["sandbox_id","process_id","state"]}`

const outputSchema = `{"type":"object","properties":{` + processFields + `,
	"output":{"type":"string","description":"what it printed after the cursor, stdout and stderr in order"},
	"cursor":{"type":"string","description":"for the next call, which reads on from there; empty: it has printed nothing yet"},
	"more":{"type":"boolean","description":"the answer is full: there may be more to read at once"},
	"dropped":{"type":"boolean","description":"some output before this one is not kept any more"}
},"required":["sandbox_id","process_id","state","output","cursor","more","dropped"]}`

const portSchema = `{"type":"object","properties":{
	"sandbox_id":{"type":"string","description":"id of the sandbox"},
	"port":{"type":"integer","description":"the port"},
	"url":{"type":"string","description":"link to the port, which needs no key"},
	"expires_at":{"type":"string","description":"when the link stops working, RFC 3339"}
},"required":["sandbox_id","port","url","expires_at"]}`
