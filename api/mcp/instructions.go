package mcp

// network says what a sandbox reaches, in the words of the pages.
const network = "Sandboxes have no network but the farm's package index (pip install works); network sets it."

// instructions describe to a model how to use the tools together.
const instructions = `Sandfarm runs code in isolated sandboxes. The flow:
1. create_sandbox gives a sandbox_id. Use it for everything that belongs together: variables, files and packages stay until the sandbox is closed or its time is up. A sandbox keeps its image: for Node.js and npm create one with image node.
2. install_packages_in_sandbox starts an install and returns at once. Poll check_package_status for each package until its status is installed or failed. For npm packages set manager to npm. There is no apt: programs beyond pip and npm packages need another image, which the operator of the farm adds. ` + network + `
3. execute_python_code runs Python in a kernel that keeps its variables; execute_terminal_command runs shell commands. Files made in the working directory /workspace come back as artifacts, plots as images; download_file gives a link to a file.
4. When an answer has state queued or running, the work continues: call get_job_result with its job_id until the state is final. Do not start the same work again. cancel_job stops a job that takes too long; restart_kernel gives an empty kernel.
5. upload_file_to_sandbox, list_files and download_file move files. list_sandboxes shows what is open.
6. start_process starts a server or another program that keeps running; read_process shows what it prints, get_port_url gives a link to its port, stop_process ends it.
7. close_sandbox when you are done: it frees the sandbox and deletes its files. Artifacts keep their links for a while.
An error says what was wrong and what to do next; correct the call and try again.`
