package mcp

// Schemas of structured content. Each is an object without lists of types, which some clients refuse. A field has a description if its
// name does not say enough: clients show the schemas of all tools to a model before its first call. The tests check every answer against
// its schema. They are not generated from Go types: mcp-go's generator makes {"type":["null","array"]} of a slice and cannot express
// "anyOf" of error and null.

// Types of fields.
const (
	aText   = `{"type":"string"}`
	aNumber = `{"type":"integer"}`
	aFlag   = `{"type":"boolean"}`
	objects = `{"type":"array","items":{"type":"object"}}`
)

const artifactSchema = `{"type":"object","properties":{
	"id":` + aText + `,"name":` + aText + `,"path":` + aText + `,"size":` + aNumber + `,"content_type":` + aText + `,"sha256":` + aText + `,
	"url":{"type":"string","description":"needs no credentials; expires"}
},"required":["id","name","path","size","content_type","sha256","url"]}`

const errorSchema = `{"description":"exception; null: none","anyOf":[{"type":"null"},{"type":"object","properties":{
	"name":{"type":"string","description":"its class, or KernelDied, OutOfMemory, OutputLimitExceeded"},
	"value":` + aText + `,"traceback":{"type":"array","items":` + aText + `}
},"required":["name","value","traceback"]}]}`

const packageStatus = `{"type":"string","enum":["installing","installed","failed","not_found"]}`

const outcomeSchema = `{"type":"object","properties":{
	"name":` + aText + `,"requested":` + aText + `,"status":` + packageStatus + `,"version":` + aText + `,"message":` + aText + `
},"required":["name","requested","status","version","message"]}`

// runFields are the fields of a run other than job_id, sandbox_id and state. They are set once the work has ended.
const runFields = `
	"stdout":{"type":"string","description":"over 32 KiB head and tail"},
	"stderr":` + aText + `,
	"exit_code":{"type":"integer","description":"1: exception; 128+signal: killed"},
	"error":` + errorSchema + `,
	"artifacts":{"type":"array","description":"new and changed files","items":` + artifactSchema + `},
	"artifacts_unlisted":{"type":"integer","description":"further ones: list_files"},
	"truncated":{"type":"object","description":"streams that were cut; over 1 MiB an artifact in .output has the whole","properties":{
		"stdout":` + aFlag + `,"stderr":` + aFlag + `},"required":["stdout","stderr"]},
	"dropped_bytes":{"type":"object","description":"output over the farm's limit, kept nowhere","properties":{
		"stdout":` + aNumber + `,"stderr":` + aNumber + `},"required":["stdout","stderr"]},
	"kernel_restarted":{"type":"boolean","description":"variables are gone"},
	"message":{"type":"string","description":"why it did not complete; notes"},
	"installed":{"type":"array","description":"packages installed for the code, as in install_packages_in_sandbox","items":{"type":"object"}}`

const resultsField = `
	"results":{"type":"array","description":"displayed values, without pictures that are image blocks","items":{"type":"object","properties":{
		"display":{"type":"integer","description":"number of the value, which its entries share"},
		"mime":` + aText + `,
		"data":{"type":"string","description":"text, or base64"},
		"url":{"type":"string","description":"link to a large value"}},"required":["display","mime"]}}`

const jobFields = `
	"job_id":` + aText + `,"sandbox_id":` + aText + `,
	"state":{"type":"string","description":"code that raised is completed","enum":["queued","running","completed","failed","timed_out","canceled","lost"]}`

const packagesField = `
	"packages":{"type":"array","items":` + outcomeSchema + `}`

const runSchema = `{"type":"object","properties":{` + jobFields + `,` + runFields + `,` + resultsField + `},"required":["job_id","sandbox_id","state"]}`

const commandSchema = `{"type":"object","properties":{` + jobFields + `,` + runFields + `},"required":["job_id","sandbox_id","state"]}`

const installSchema = `{"type":"object","properties":{` + jobFields + `,` + packagesField + `,
	"message":{"type":"string","description":"why it did not complete"}},"required":["job_id","sandbox_id","state","packages"]}`

// jobSchema has the fields of every kind of job. What is in them is in the schema of the tool that started the work.
const jobSchema = `{"type":"object","description":"fields as in the tool that started the work","properties":{` + jobFields + `,
	"kind":{"type":"string","description":"what the job does, such as execute"},
	"stdout":` + aText + `,"stderr":` + aText + `,"exit_code":` + aNumber + `,"error":{"anyOf":[{"type":"null"},{"type":"object"}]},
	"artifacts":` + objects + `,"artifacts_unlisted":` + aNumber + `,"truncated":{"type":"object"},"dropped_bytes":{"type":"object"},"kernel_restarted":` + aFlag + `,"message":` + aText + `,
	"installed":` + objects + `,"results":` + objects + `,"packages":` + objects + `},"required":["job_id","sandbox_id","kind","state"]}`

const stoppedSchema = `{"type":"object","properties":{` + jobFields + `,
	"kind":{"type":"string","description":"what the job does, such as execute"}},"required":["job_id","sandbox_id","kind","state"]}`

const sandboxState = `{"type":"string","description":"ready and busy take work at once, queued and starting soon","enum":["queued","starting","ready","busy","hibernated","closing","closed","expired","failed","lost"]}`

const createSchema = `{"type":"object","properties":{
	"sandbox_id":` + aText + `,"name":` + aText + `,"state":` + sandboxState + `,"image":` + aText + `,"expires_at":` + aText + `,"job_id":` + aText + `,` + packagesField + `
},"required":["sandbox_id","name","state","image","expires_at","job_id"]}`

const listSchema = `{"type":"object","properties":{"sandboxes":{"type":"array","items":{"type":"object","properties":{
	"sandbox_id":` + aText + `,"name":` + aText + `,"state":` + sandboxState + `,"image":` + aText + `,"created_at":` + aText + `,"expires_at":` + aText + `
},"required":["sandbox_id","name","state","image","created_at","expires_at"]}}},"required":["sandboxes"]}`

const statusFields = `
	"name":` + aText + `,"status":` + packageStatus + `,"version":` + aText + `,"manager":{"type":"string","enum":["pip","npm"]},
	"job_id":{"type":"string","description":"its newest install; empty: none"},
	"message":{"type":"string","description":"why it failed"}`

const statusSchema = `{"type":"object","properties":{
	"sandbox_id":` + aText + `,` + statusFields + `
},"required":["sandbox_id","name","status","version","manager","job_id","message"]}`

const statusesSchema = `{"type":"object","properties":{
	"sandbox_id":` + aText + `,
	"packages":{"type":"object","description":"by the names that were given","additionalProperties":{"type":"object","properties":{` + statusFields + `,
	"installed":` + aFlag + `},"required":["name","status","version","manager","job_id","message","installed"]}}
},"required":["sandbox_id","packages"]}`

const uploadSchema = `{"type":"object","properties":{
	"sandbox_id":` + aText + `,"path":` + aText + `,"size":` + aNumber + `,"sha256":` + aText + `
},"required":["sandbox_id","path","size","sha256"]}`

const filesSchema = `{"type":"object","properties":{
	"sandbox_id":` + aText + `,
	"files":{"type":"array","items":{"type":"object","properties":{
		"path":` + aText + `,"size":` + aNumber + `,"mode":` + aText + `,"modified_at":` + aText + `,
		"type":{"type":"string","enum":["file","dir","symlink","other"]}
	},"required":["path","size","mode","modified_at","type"]}},
	"truncated":{"type":"boolean","description":"the list is incomplete: list a subdirectory"}
},"required":["sandbox_id","files","truncated"]}`

const downloadSchema = `{"type":"object","properties":{
	"sandbox_id":` + aText + `,"path":` + aText + `,"size":` + aNumber + `,"content_type":` + aText + `,
	"url":{"type":"string","description":"needs no credentials; expires"},
	"local_path":{"type":"string","description":"where it was saved"}
},"required":["sandbox_id","path","size","content_type","url"]}`

const closeSchema = `{"type":"object","properties":{
	"sandbox_id":` + aText + `,"state":{"type":"string","enum":["closing","closed"]}
},"required":["sandbox_id","state"]}`

const processFields = `
	"sandbox_id":` + aText + `,"process_id":` + aText + `,"state":{"type":"string","enum":["running","exited"]},
	"exit_code":{"type":"integer","description":"128+signal: killed"}`

const processSchema = `{"type":"object","properties":{` + processFields + `},"required":["sandbox_id","process_id","state"]}`

const outputSchema = `{"type":"object","properties":{` + processFields + `,
	"output":{"type":"string","description":"stdout and stderr in order"},
	"cursor":{"type":"string","description":"for the next call; empty: nothing was printed yet"},
	"more":{"type":"boolean","description":"call again at once"},
	"dropped":{"type":"boolean","description":"some output before this is not kept"}
},"required":["sandbox_id","process_id","state","output","cursor","more","dropped"]}`

const portSchema = `{"type":"object","properties":{
	"sandbox_id":` + aText + `,"port":` + aNumber + `,"url":` + aText + `,"expires_at":` + aText + `
},"required":["sandbox_id","port","url","expires_at"]}`
