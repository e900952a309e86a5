// Made from the farm's OpenAPI document by `make gen`. Do not edit.

export interface components {
    schemas: {
        Artifact: {
            /** @description media type */
            content_type: string;
            /**
             * Format: date-time
             * @description when it was stored
             */
            created_at: string;
            /**
             * Format: date-time
             * @description when it will be removed
             */
            expires_at: string;
            /** @description id of the artifact */
            id: string;
            /** @description the job that made it */
            job_id: string;
            /** @description last element of the path */
            name: string;
            /** @description path relative to the workspace */
            path: string;
            /** @description the sandbox it was made in */
            sandbox_id: string;
            /** @description SHA-256 of the bytes, in hex */
            sha256: string;
            /** @description bytes */
            size: number;
            /** @description presigned link; it expires */
            url: string;
        };
        ArtifactList: {
            /** @description the entries of this page */
            items: components["schemas"]["Artifact"][];
            /** @description send it as cursor to get the next page; null: this is the last */
            next_cursor: string | null;
        };
        AuditEntry: {
            /**
             * Format: date-time
             * @description when it happened
             */
            at: string;
            /** @description address of the caller; local: this machine, without the network */
            from: string;
            /** @description id of the entry */
            id: string;
            /** @description the job that was accepted, or canceled by a tool; empty: none */
            job_id: string;
            /** @description id of the caller's key; empty: none; local: the operator on the farm's machine */
            key_id: string;
            /** @description entries before this one that could not be kept; they are in the server's log, except for floods of requests without a key */
            missed: number;
            /** @description id of the request, found in the server's log */
            request_id: string;
            /** @description method and path template of the request */
            route: string;
            /** @description the sandbox of that job or process, or of the link that a tool made; empty: none */
            sandbox_id: string;
            /** @description status of the answer; 202 for an accepted job */
            status: number;
            /** @description the id or tenant in the path, the key that was made, or the process that a tool started or ended; empty: none */
            subject: string;
            /** @description tenant of the caller; empty: without a valid key */
            tenant: string;
        };
        AuditEntryList: {
            /** @description the entries of this page */
            items: components["schemas"]["AuditEntry"][];
            /** @description send it as cursor to get the next page; null: this is the last */
            next_cursor: string | null;
        };
        BatchOutcome: {
            /** @description why the entry was refused */
            error?: components["schemas"]["Problem"];
            /** @description the accepted job */
            job?: components["schemas"]["Job"];
            /** @description the new sandbox of a create */
            sandbox?: components["schemas"]["Sandbox"];
        };
        BatchRequest: {
            /** @description entries {kind, sandbox_id, …the body of the route} */
            jobs: {
                /**
                 * @description what the job does
                 * @enum {string}
                 */
                kind: "create" | "execute" | "command" | "run" | "install" | "interrupt" | "restart" | "close";
                /** @description the sandbox it works in; not with create and run */
                sandbox_id?: string;
            }[];
        };
        BatchResult: {
            /** @description one outcome for each entry, in order */
            jobs: components["schemas"]["BatchOutcome"][];
        };
        ChangesDropped: {
            /** @description why */
            reason: string;
        };
        ClearData: {
            /** @description true: clear when the next output comes, and not before; updates of values are no such output. false: now */
            wait: boolean;
        };
        CodeError: {
            /** @description class of the exception; KernelDied or OutOfMemory when the kernel ended; OutputLimitExceeded when on_output_limit stopped the code */
            name: string;
            /** @description lines of the traceback, without colours */
            traceback: string[];
            /** @description text of the exception */
            value: string;
        };
        CommandOutcome: {
            /** @description the command */
            command: string;
            /** @description bytes of each stream beyond limits.max_output_mb; they were dropped from its middle and are kept nowhere */
            dropped_bytes: components["schemas"]["DroppedBytes"];
            /** @description duration in milliseconds */
            duration_ms: number;
            /** @description its exit code; 128+signal for a kill */
            exit_code: number;
            /** @description its standard error; over 1 MiB only head and tail */
            stderr: string;
            /** @description its standard output; over 1 MiB only head and tail */
            stdout: string;
            /** @description which streams were cut; the whole is an artifact then */
            truncated: components["schemas"]["Truncated"];
        };
        CommandRequest: {
            /** @description install what the Python programs that the commands start import and the sandbox lacks, and what the requirements.txt beside them lists */
            auto_install?: boolean;
            /** @description do not block later jobs of the sandbox */
            background?: boolean;
            /** @description http(s) address that gets the finished job */
            callback_url?: string;
            /** @description one shell command or script */
            command?: string;
            /** @description several commands, run one after the other */
            commands?: string[];
            /** @description continue after a command that failed */
            continue_on_error?: boolean;
            /** @description working directory, relative to the workspace */
            cwd?: string;
            /** @description environment of these commands only; a name has at most 128 bytes */
            env?: {
                [key: string]: string;
            };
            /**
             * @description what happens when stdout or stderr exceeds limits.max_output_mb: continue drops the middle of the output, stop ends the commands
             * @default continue
             * @enum {string}
             */
            on_output_limit?: "continue" | "stop";
            /**
             * @description seconds for all commands together
             * @default 300
             */
            timeout_seconds?: number;
        };
        CommandResult: {
            /** @description every file of the workspace that is new or changed; none in folders named .cache, .git, .venv, __pycache__, node_modules or venv, which notes count */
            artifacts: components["schemas"]["Artifact"][];
            /** @description files over the caps, which stay in the workspace */
            artifacts_skipped: number;
            /** @description packages that were installed for the commands */
            installed: components["schemas"]["InstalledOne"][];
            /** @description what the caller should know, a sentence each */
            notes: string[];
            /** @description one entry for each command that ran */
            results: components["schemas"]["CommandOutcome"][];
        };
        ControlRequest: {
            /** @description http(s) address that gets the finished job */
            callback_url?: string;
            /** @description one kernel; absent: all of them */
            context?: string;
        };
        Created: {
            /** @description the job that creates it */
            job: components["schemas"]["Job"];
            /** @description the new sandbox */
            sandbox: components["schemas"]["Sandbox"];
        };
        CreateRequest: {
            /** @description rules of the hosts that the network allowlist reaches, such as api.github.com, *.example.com or GET,HEAD data.example.com:8080 */
            allow_hosts?: string[];
            /** @description http(s) address that gets the finished job */
            callback_url?: string;
            /** @description environment of everything in the sandbox; a name has at most 128 bytes */
            env?: {
                [key: string]: string;
            };
            /** @description devices; needs a worker that has them */
            gpu?: components["schemas"]["GPURequest"];
            /**
             * @description life after the end of the last use; 0: no idle limit
             * @default 0
             */
            idle_seconds?: number;
            /**
             * @description name of the image (GET /v1/images)
             * @default python
             */
            image?: string;
            /** @description labels to find it by */
            labels?: {
                [key: string]: string;
            };
            /** @description name of the sandbox; need not be unique */
            name?: string;
            /**
             * @description what the sandbox can reach: nothing, package indexes, or these and the hosts of allow_hosts; allowlist must be enabled by the operator
             * @default packages
             * @enum {string}
             */
            network?: "none" | "packages" | "allowlist";
            /**
             * @description what happens when it has been idle for idle_seconds; hibernate needs a node that can
             * @default close
             * @enum {string}
             */
            on_idle?: "close" | "hibernate";
            /** @description Python packages to install first, as in POST …/packages */
            packages?: string[];
            /** @description what the sandbox may use */
            resources?: components["schemas"]["ResourcesRequest"];
            /** @description OCI runtime of the sandbox, such as runsc (gVisor), within what the operator allows; absent: the default of the tenant, or else of the image, or else of the node */
            runtime?: string;
            /** @description headers that the proxy adds to HTTPS requests for a host, by the name of an environment variable, which gets a placeholder; code never sees the values. They need the network allowlist */
            secrets?: {
                [key: string]: components["schemas"]["Secret"];
            };
            /**
             * @description life from now
             * @default 86400
             */
            ttl_seconds?: number;
        };
        DayUsage: {
            /** @description CPU time of its sandboxes, by the engine's counters */
            cpu_seconds: number;
            /** @description the day, such as 2026-11-22 */
            day: string;
            /** @description time for which it had GPUs, for each device */
            gpu_seconds: number;
            /** @description GiB of memory in use, times seconds */
            memory_gb_seconds: number;
            /** @description time that its sandboxes ran */
            sandbox_seconds: number;
            /** @description GiB of artifacts, times seconds */
            stored_gb_seconds: number;
        };
        delete_jobs_id_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        delete_sandboxes_id_files_path_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        delete_sandboxes_id_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        DisplayData: {
            /** @description the artifact that holds a large value */
            artifact_id?: string;
            /** @description the value: text as it is, anything else base64 */
            data?: string;
            /** @description number of the displayed value, from 0: entries of one value share it. A value that was updated in place keeps its number, so of two entries with the same number and type the later one counts */
            display: number;
            /** @description the name that the code gave the value; at most 256 bytes */
            display_id?: string;
            /** @description an object: how to show the value, such as its size; all entries of a value have the same */
            metadata?: Record<string, unknown>;
            /** @description MIME type */
            mime: string;
            /** @description the next display event has another MIME type of this value; without it the value is complete */
            more?: boolean;
            /** @description the value of the last expression of the code, and not one that the code displayed */
            result?: boolean;
            /** @description the value replaces the one with this number. If this job has not displayed that, it replaces the value with this display_id that an earlier job of the kernel displayed */
            update?: boolean;
            /** @description link to a large value */
            url?: string;
        };
        Drain: {
            /** @description when the last of its sandboxes expires, unless its deadline is moved; null if none is left */
            ends_by: string | null;
            /** @description hibernated ones among them */
            hibernated: number;
            /**
             * @description what becomes of its idle sandboxes
             * @enum {string}
             */
            idle: "keep" | "hibernate" | "close";
            /** @description jobs that its workers run, as of their last heartbeats */
            jobs: number;
            /** @description the node */
            node: string;
            /** @description open sandboxes that are left, hibernated ones too */
            sandboxes: number;
            /**
             * Format: date-time
             * @description since when it is drained
             */
            since: string;
            /**
             * @description draining: sandboxes or jobs are left, or a worker does not know yet; hibernated: only hibernated sandboxes are left, so the host may be restarted but not removed; drained: nothing is left, so the host may be removed
             * @enum {string}
             */
            state: "draining" | "hibernated" | "drained";
        };
        DrainRequest: {
            /**
             * @description what becomes of sandboxes that were not used for 30 seconds: keep leaves them until they end, hibernate stores those that can on the disk of the node, close closes them
             * @default keep
             * @enum {string}
             */
            idle?: "keep" | "hibernate" | "close";
        };
        DroppedBytes: {
            /** @description bytes of stderr that were dropped */
            stderr: number;
            /** @description bytes of stdout that were dropped */
            stdout: number;
        };
        EgressEntry: {
            /**
             * Format: date-time
             * @description when the connection was asked for
             */
            at: string;
            /** @description how long it lasted */
            duration_ms: number;
            /** @description host that was asked for; code in the sandbox chooses it */
            host: string;
            /** @description id of the entry; send it as after to read what follows */
            id: string;
            /** @description CONNECT for HTTPS and other TLS, or the method of a request over plain HTTP */
            method: string;
            /** @description connections before this one that are not in the log, because there were too many at once */
            missed: number;
            /** @description its port; 0: none, or not a valid one */
            port: number;
            /** @description why it was denied or failed; empty: it was allowed */
            reason: string;
            /** @description bytes from the host */
            received: number;
            /** @description names of the secrets that were added to the request */
            secrets: string[];
            /** @description bytes to the host */
            sent: number;
            /**
             * @description allowed, denied by a rule or a limit, or failed: allowed but not reached, or broken
             * @enum {string}
             */
            verdict: "allowed" | "denied" | "failed";
        };
        EgressEntryList: {
            /** @description the entries of this page */
            items: components["schemas"]["EgressEntry"][];
            /** @description send it as cursor to get the next page; null: this is the last */
            next_cursor: string | null;
        };
        ExecuteRequest: {
            /** @description install what the code imports and the sandbox lacks, and what the workspace's requirements.txt lists */
            auto_install?: boolean;
            /** @description http(s) address that gets the finished job */
            callback_url?: string;
            /** @description the code */
            code: string;
            /**
             * @description name of the kernel; each keeps its own variables
             * @default default
             */
            context?: string;
            /** @description environment of this execution only; a name has at most 128 bytes */
            env?: {
                [key: string]: string;
            };
            /** @description name of the file in the workspace that the code is from: its __file__ and sys.argv[0]; errors name it. Python only */
            filename?: string;
            /**
             * @description a language of the image
             * @default python
             */
            language?: string;
            /**
             * @description what happens when stdout or stderr exceeds limits.max_output_mb: continue drops the middle of the output, stop ends the code
             * @default continue
             * @enum {string}
             */
            on_output_limit?: "continue" | "stop";
            /**
             * @description seconds that the code may run
             * @default 300
             */
            timeout_seconds?: number;
        };
        ExecuteResult: {
            /** @description every file of the workspace that is new or changed; none in folders named .cache, .git, .venv, __pycache__, node_modules or venv, which notes count */
            artifacts: components["schemas"]["Artifact"][];
            /** @description files over the caps, which stay in the workspace */
            artifacts_skipped: number;
            /** @description bytes of each stream beyond limits.max_output_mb; they were dropped from its middle and are kept nowhere */
            dropped_bytes: components["schemas"]["DroppedBytes"];
            /** @description the exception that ended the code; null: none */
            error: components["schemas"]["CodeError"] | null;
            /** @description counter of the kernel */
            execution_count: number;
            /** @description 0; 1 for an exception; N after exit(N); 128+signal for a kill */
            exit_code: number;
            /** @description the code ran in a process of its own, because the image has no kernel for the language */
            fresh_process: boolean;
            /** @description packages that were installed for the code */
            installed: components["schemas"]["InstalledOne"][];
            /** @description the kernel is new: earlier variables are lost */
            kernel_restarted: boolean;
            /** @description what the caller should know, a sentence each */
            notes: string[];
            /** @description displayed values that the code has not cleared, in their last state: one entry for each MIME type of each value, grouped by display */
            results: components["schemas"]["Rich"][];
            /** @description standard error; over 1 MiB only head and tail */
            stderr: string;
            /** @description standard output; over 1 MiB only head and tail */
            stdout: string;
            /** @description which streams were cut; the whole is an artifact then */
            truncated: components["schemas"]["Truncated"];
        };
        FieldError: {
            /** @description what is wrong and what to do */
            detail: string;
            /** @description JSON pointer (RFC 6901) to the field; empty: the body as a whole */
            pointer: string;
        };
        FileChange: {
            /** @description renamed: the path before; otherwise null */
            from: string | null;
            /** @description changed: only the mode, owner or times have changed, not the content */
            metadata: boolean;
            /** @description absolute path */
            path: string;
            /**
             * @description file stands for anything but a directory
             * @enum {string}
             */
            type: "file" | "dir";
        };
        FileEntry: {
            /** @description permissions, four octal digits */
            mode: string;
            /**
             * Format: date-time
             * @description last change of the content
             */
            modified_at: string;
            /** @description path relative to the workspace */
            path: string;
            /** @description bytes */
            size: number;
            /**
             * @description what it is
             * @enum {string}
             */
            type: "file" | "dir" | "symlink" | "other";
        };
        FileResult: {
            /** @description the files and directories it touched or found */
            entries: components["schemas"]["FileEntry"][];
            /** @description what the caller should know, a sentence each */
            notes: string[];
        };
        Files: {
            /** @description files and directories: by name in each directory, a directory before what is in it */
            items: components["schemas"]["FileEntry"][];
            /** @description send it as cursor to get the next page; null: this is the last */
            next_cursor: string | null;
            /** @description what the caller should know, such as what a listing leaves out; usually empty */
            note: string;
        };
        FleetEvent: {
            /**
             * Format: date-time
             * @description when it happened, or was noticed
             */
            at: string;
            /** @description worker_problem: why it accepts no jobs; node_drained: drained, or hibernated if hibernated sandboxes are left */
            detail: string;
            /** @description its host name; empty if it is not known */
            host: string;
            /** @description id of the event */
            id: string;
            /** @description worker_lost: jobs that it ran, which other workers take over */
            jobs: number;
            /**
             * @description what happened
             * @enum {string}
             */
            kind: "worker_started" | "worker_stopped" | "worker_lost" | "worker_problem" | "worker_recovered" | "node_ended" | "drain_started" | "node_drained" | "drain_ended";
            /** @description the node */
            node: string;
            /** @description node_ended: its sandboxes, which are lost */
            sandboxes: number;
            /** @description the worker; empty for events of a node */
            worker_id: string;
        };
        FleetEventItems: {
            /** @description the entries */
            items: components["schemas"]["FleetEvent"][];
        };
        FloatRange: {
            /** @description value if none is given */
            default: number;
            /** @description largest */
            max: number;
            /** @description smallest */
            min: number;
        };
        FSChange: {
            /** @description permissions in octal digits, such as 0755 */
            mode?: string;
            /**
             * Format: date-time
             * @description time of the last change of the content, from 1970 to 2262
             */
            modified_at?: string;
        };
        FSEntry: {
            /** @description names this version, for If-Match and If-None-Match */
            etag: string;
            /** @description id of the owner's group */
            gid: number;
            /** @description permissions, four octal digits */
            mode: string;
            /**
             * Format: date-time
             * @description last change of the content
             */
            modified_at: string;
            /** @description absolute path */
            path: string;
            /** @description bytes of a file; 0 for anything else */
            size: number;
            /** @description what a symbolic link leads to, as it is written; null for anything else */
            target: string | null;
            /**
             * @description what it is
             * @enum {string}
             */
            type: "file" | "dir" | "symlink" | "other";
            /** @description user id of the owner */
            uid: number;
        };
        FSLink: {
            /** @description path of the link: absolute, or relative to the workspace */
            path: string;
            /** @description what the link leads to; it may be anything, also nothing */
            target: string;
        };
        FSListing: {
            /** @description by name in each directory, a directory before what is in it */
            items: components["schemas"]["FSEntry"][];
            /** @description send it as cursor to get the next page; null: this is the last */
            next_cursor: string | null;
            /** @description what the caller should know, such as what the listing leaves out; usually empty */
            note: string;
        };
        FSMove: {
            /** @description path: absolute, or relative to the workspace */
            from: string;
            /** @description new path; directories above it are created, a file there is replaced, a directory is not */
            to: string;
        };
        get_artifacts_query: {
            /**
             * Format: date-time
             * @description only what was created after this time (RFC 3339)
             */
            created_after?: string;
            /**
             * Format: date-time
             * @description only what was created before this time (RFC 3339)
             */
            created_before?: string;
            /** @description next_cursor of the page before */
            cursor?: string;
            /** @description only of this job */
            job_id?: string;
            /**
             * @description entries of a page
             * @default 50
             */
            limit?: number;
            /** @description only of exactly this name, the last element of the path */
            name?: string;
            /** @description only of this sandbox */
            sandbox_id?: string;
            /** @description only of jobs in these states, separated by commas */
            state?: string;
        };
        get_audit_query: {
            /**
             * Format: date-time
             * @description only what was created after this time (RFC 3339)
             */
            created_after?: string;
            /**
             * Format: date-time
             * @description only what was created before this time (RFC 3339)
             */
            created_before?: string;
            /** @description next_cursor of the page before */
            cursor?: string;
            /**
             * @description entries of a page
             * @default 50
             */
            limit?: number;
            /** @description only of this tenant */
            tenant?: string;
        };
        get_events_query: {
            /**
             * @description events at most
             * @default 200
             */
            limit?: number;
        };
        get_jobs_id_events_query: {
            /** @description the same as Last-Event-ID */
            after?: string;
        };
        get_jobs_id_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        get_jobs_query: {
            /**
             * Format: date-time
             * @description only what was created after this time (RFC 3339)
             */
            created_after?: string;
            /**
             * Format: date-time
             * @description only what was created before this time (RFC 3339)
             */
            created_before?: string;
            /** @description next_cursor of the page before */
            cursor?: string;
            /** @description only of this job */
            job_id?: string;
            /** @description only of these kinds, separated by commas */
            kind?: string;
            /**
             * @description entries of a page
             * @default 50
             */
            limit?: number;
            /** @description only with this outcome */
            outcome?: string;
            /** @description only of this sandbox */
            sandbox_id?: string;
            /** @description only in these states, separated by commas */
            state?: string;
        };
        get_keys_query: {
            /** @description next_cursor of the page before */
            cursor?: string;
            /**
             * @description entries of a page
             * @default 50
             */
            limit?: number;
            /** @description only of this tenant */
            tenant?: string;
        };
        get_sandboxes_id_egress_query: {
            /** @description id of an entry: only what follows it */
            after?: string;
            /**
             * @description entries of a page
             * @default 100
             */
            limit?: number;
        };
        get_sandboxes_id_files_path_query: {
            /**
             * @description redirect to a presigned link
             * @default false
             */
            link?: boolean;
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        get_sandboxes_id_files_query: {
            /** @description next_cursor of the page before */
            cursor?: string;
            /**
             * @description entries of a page
             * @default 50000
             */
            limit?: number;
            /**
             * @description directory in the workspace
             * @default
             */
            path?: string;
            /**
             * @description the whole tree
             * @default false
             */
            recursive?: boolean;
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        get_sandboxes_id_fs_path_query: {
            /**
             * @description a directory, as a tar of its files, directories and symbolic links
             * @default false
             */
            tar?: boolean;
            /**
             * @description a directory, as a zip of its files, directories and symbolic links
             * @default false
             */
            zip?: boolean;
        };
        get_sandboxes_id_fs_query: {
            /** @description next_cursor of the page before */
            cursor?: string;
            /**
             * @description how far below the path; 0 describes the path itself, and follows no link
             * @default 1
             */
            depth?: number;
            /**
             * @description entries of a page
             * @default 10000
             */
            limit?: number;
            /**
             * @description absolute, or relative to the workspace
             * @default
             */
            path?: string;
        };
        get_sandboxes_id_packages_name_query: {
            /**
             * @description package manager
             * @default pip
             * @enum {string}
             */
            manager?: "pip" | "npm";
        };
        get_sandboxes_id_processes_process_attach_query: {
            /** @description number of the last piece of output that the caller has */
            after?: string;
            /** @description a name of the caller's choice, up to 64 letters, digits, dashes and underscores, under which its input continues after a break */
            writer?: string;
            /** @description how many bytes of the writer's input the process has, by the last message */
            written?: number;
        };
        get_sandboxes_id_processes_process_events_query: {
            /** @description id of the last event that the caller has, as Last-Event-ID */
            after?: string;
        };
        get_sandboxes_id_processes_query: {
            /**
             * @description list what jobs and kernels started, too
             * @default false
             */
            all?: boolean;
        };
        get_sandboxes_id_watch_query: {
            /** @description id of the last event that the caller has, as Last-Event-ID */
            after?: string;
            /** @description pattern of names that are left out, such as *.pyc; may be repeated */
            ignore?: string;
            /**
             * @description absolute, or relative to the workspace
             * @default
             */
            path?: string;
            /**
             * @description all directories below it, too
             * @default false
             */
            recursive?: boolean;
        };
        get_sandboxes_query: {
            /**
             * Format: date-time
             * @description only what was created after this time (RFC 3339)
             */
            created_after?: string;
            /**
             * Format: date-time
             * @description only what was created before this time (RFC 3339)
             */
            created_before?: string;
            /** @description next_cursor of the page before */
            cursor?: string;
            /** @description key=value; may be repeated */
            label?: string[];
            /**
             * @description entries of a page
             * @default 50
             */
            limit?: number;
            /** @description only of exactly this name */
            name?: string;
            /** @description only in these states, separated by commas */
            state?: string;
        };
        get_tenants_name_usage_query: {
            /**
             * @description of how many days, today included
             * @default 30
             */
            days?: number;
        };
        get_tenants_query: {
            /** @description next_cursor of the page before */
            cursor?: string;
            /**
             * @description entries of a page
             * @default 50
             */
            limit?: number;
        };
        get_usage_query: {
            /**
             * @description of how many days, today included
             * @default 30
             */
            days?: number;
        };
        GPU: {
            /** @description number of devices; 0: none */
            count: number;
            /** @description model that the devices must have */
            model?: string;
        };
        GPUDevice: {
            /** @description id of the device, unique on its node */
            id: string;
            /** @description it is leased to a sandbox */
            leased: boolean;
            /** @description MiB on the device; 0: not known */
            memory_mb: number;
            /** @description its model; gpu.model may name it in full or by its beginning up to a dash */
            model: string;
        };
        GPURequest: {
            /** @description number of devices; 0: none; absent: 1 if a model is given, else none */
            count?: number;
            /** @description model that the devices must have */
            model?: string;
        };
        head_sandboxes_id_files_path_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        Health: {
            /** @description ok */
            status: string;
            /** @description version of the farm */
            version: string;
        };
        HibernateRequest: {
            /** @description http(s) address that gets the finished job */
            callback_url?: string;
        };
        Image: {
            /** @description what is in it */
            description: string;
            /** @description languages it runs */
            languages: string[];
            /** @description name to create a sandbox with */
            name: string;
            /** @description bytes on disk */
            size: number;
        };
        ImageItems: {
            /** @description the entries */
            items: components["schemas"]["Image"][];
        };
        InputFile: {
            /** @description text of the file */
            content?: string;
            /** @description bytes of the file, in base64 */
            content_base64?: string;
            /** @description path in the workspace */
            path: string;
        };
        InstalledOne: {
            /** @description why it failed, or what to know about it */
            message: string;
            /** @description name of the package */
            name: string;
            /** @description the requirement */
            requested: string;
            /**
             * @description outcome
             * @enum {string}
             */
            status: "installed" | "failed";
            /** @description the installed version */
            version: string;
            /** @description of an automatic install: what required it */
            why?: string;
        };
        InstallResult: {
            /** @description the whole of each truncated stream */
            artifacts: components["schemas"]["Artifact"][];
            /** @description bytes of each stream beyond limits.max_output_mb; they were dropped from its middle and are kept nowhere */
            dropped_bytes: components["schemas"]["DroppedBytes"];
            /** @description what the caller should know, a sentence each */
            notes: string[];
            /** @description one entry for each requested package */
            packages: components["schemas"]["InstalledOne"][];
            /** @description what the installer wrote to standard error */
            stderr: string;
            /** @description what the installer printed */
            stdout: string;
            /** @description which streams were cut; the whole is an artifact then */
            truncated: components["schemas"]["Truncated"];
        };
        IntRange: {
            /** @description value if none is given */
            default: number;
            /** @description largest */
            max: number;
            /** @description smallest */
            min: number;
        };
        Job: {
            /** @description how many workers have started it; 0 while it is queued */
            attempt: number;
            /**
             * Format: date-time
             * @description when it was accepted
             */
            created_at: string;
            /** @description why it failed, timed out, was canceled or lost; null otherwise */
            error: components["schemas"]["JobError"] | null;
            /** @description estimated seconds until a create or run starts, from the recent pace of its queue; null: not known */
            estimate_seconds: number | null;
            /** @description when it ended; null: not yet */
            finished_at: string | null;
            /** @description id of the job */
            id: string;
            /**
             * @description what it does
             * @enum {string}
             */
            kind: "create" | "execute" | "command" | "install" | "file" | "run" | "close" | "interrupt" | "restart" | "hibernate" | "resume";
            /** @description paths of the job */
            links: components["schemas"]["Links"];
            /** @description whether what it ran was successful: failed if code raised, an exit code is not 0 or a package of a create or an install was not installed (those of a run are in result.installed), and if the job failed, timed out or was lost; null: it has not ended, or was canceled */
            outcome: ("ok" | "failed") | null;
            /** @description position while it is queued, 1 is next: of a create or run in its queue, of other jobs in the FIFO of their sandbox, where 1001 is any place behind the first 1000; 0 otherwise */
            position: number;
            /** @description the request, code up to 64 KiB; null if the farm itself created the job */
            request: components["schemas"]["JobSpec"] | null;
            /** @description the outcome; null until there is one */
            result: components["schemas"]["Result"] | null;
            /** @description the sandbox it works in */
            sandbox_id: string;
            /** @description when a worker started it; null: not yet */
            started_at: string | null;
            /**
             * @description state of the job; code that raised an exception is completed
             * @enum {string}
             */
            state: "queued" | "running" | "completed" | "failed" | "timed_out" | "canceled" | "lost";
            /** @description duration of each phase */
            timings: components["schemas"]["Timings"];
            /** @description what it waits for while it is queued, as of the last reports of the workers; null otherwise, or if that cannot be read */
            waiting: components["schemas"]["Waiting"] | null;
        };
        JobError: {
            /**
             * @description kind of the error
             * @enum {string}
             */
            code: "invalid" | "unauthorized" | "not_found" | "conflict" | "too_large" | "exhausted" | "unavailable" | "internal";
            /** @description what happened and what to do */
            message: string;
        };
        JobList: {
            /** @description the entries of this page */
            items: components["schemas"]["Job"][];
            /** @description send it as cursor to get the next page; null: this is the last */
            next_cursor: string | null;
        };
        JobSpec: {
            /** @description rules of the hosts that the new sandbox can reach */
            allow_hosts?: string[];
            /** @description missing packages are installed first */
            auto_install?: boolean;
            /** @description the commands do not block later jobs of the sandbox */
            background?: boolean;
            /** @description address that gets the finished job, without its query */
            callback_url?: string;
            /** @description the code */
            code?: string;
            /** @description the shell commands */
            commands?: string[];
            /** @description name of the kernel */
            context?: string;
            /** @description continue after a command that failed */
            continue_on_error?: boolean;
            /** @description working directory of the commands */
            cwd?: string;
            /** @description names of the environment variables; values are not shown */
            env_names?: string[];
            /** @description name of the file in the workspace that the code is from */
            filename?: string;
            /** @description files that came with the request, without their content */
            files?: components["schemas"]["SpecFile"][];
            /** @description devices of the new sandbox */
            gpu?: components["schemas"]["GPU"];
            /** @description life of the new sandbox after the end of its last use */
            idle_seconds?: number;
            /** @description image of the new sandbox */
            image?: string;
            /** @description labels of the new sandbox */
            labels?: {
                [key: string]: string;
            };
            /** @description language of the code */
            language?: string;
            /**
             * @description installer of the packages
             * @enum {string}
             */
            manager?: "pip" | "npm";
            /** @description name of the new sandbox */
            name?: string;
            /**
             * @description what the new sandbox can reach
             * @enum {string}
             */
            network?: "none" | "packages" | "allowlist";
            /**
             * @description what happens when the new sandbox is idle; absent: it is closed
             * @enum {string}
             */
            on_idle?: "close" | "hibernate";
            /**
             * @description what happens when stdout or stderr exceeds limits.max_output_mb
             * @enum {string}
             */
            on_output_limit?: "continue" | "stop";
            /**
             * @description what a job of kind file does
             * @enum {string}
             */
            operation?: "write" | "tar" | "many" | "mkdir" | "delete" | "move";
            /** @description packages to install */
            packages?: string[];
            /** @description path in the workspace */
            path?: string;
            /** @description what the new sandbox may use */
            resources?: components["schemas"]["Resources"];
            /** @description OCI runtime that the new sandbox must have; absent: the default of its node */
            runtime?: string;
            /** @description names of the secrets of the new sandbox; values are not kept here */
            secrets?: string[];
            /** @description bytes of the upload */
            size?: number;
            /** @description seconds that the job may run */
            timeout_seconds?: number;
            /** @description new path of a move */
            to?: string;
            /** @description code, commands or files were cut; GET /v1/jobs/{id}/request has all of it */
            truncated?: boolean;
            /** @description life of the new sandbox */
            ttl_seconds?: number;
        };
        Key: {
            /** @description when it was made; null for a key of the settings */
            created_at: string | null;
            /** @description when it expires or has expired; null: never */
            expires_at: string | null;
            /** @description id of the key */
            id: string;
            /** @description its last use, to about a minute; null: never used, or a key of the settings */
            last_used_at: string | null;
            /** @description free text */
            name: string;
            /**
             * @description where the key was made: by this API, or in the farm's settings
             * @enum {string}
             */
            origin: "api" | "settings";
            /** @description what the key may do: run, read, metrics, admin; empty for a key of the settings without scopes, which has run and metrics and sees the whole fleet */
            scopes: string[];
            /** @description tenant that owns what is created with the key */
            tenant: string;
        };
        KeyList: {
            /** @description the entries of this page */
            items: components["schemas"]["Key"][];
            /** @description send it as cursor to get the next page; null: this is the last */
            next_cursor: string | null;
        };
        KeyRequest: {
            /** @description seconds until the key expires, at least 1; default: never */
            expires_seconds?: number;
            /** @description free text, such as who has the key */
            name?: string;
            /** @description what the key may do: run, read, metrics, admin; default run */
            scopes?: string[];
            /** @description tenant that owns what is created with the key: 1 to 64 letters, digits, dots, dashes and underscores, not only dots, and none of fleet, nodes, pool and room */
            tenant: string;
        };
        Limits: {
            /** @description how long closed sandboxes stay readable */
            closed_seconds: number;
            /** @description cores of a sandbox */
            cpus: components["schemas"]["FloatRange"];
            /** @description workspace of a sandbox */
            disk_mb: components["schemas"]["IntRange"];
            /** @description connections to allowed hosts that a sandbox has open at once */
            egress_connections: number;
            /** @description connections to hosts that a sandbox may ask for in a minute */
            egress_connects_per_minute: number;
            /** @description MiB that a sandbox may exchange with allowed hosts in its life */
            egress_mb: number;
            /** @description how long an Idempotency-Key is remembered */
            idempotency_seconds: number;
            /** @description idle_seconds when none is given; 0: no idle limit */
            idle_default_seconds: number;
            /** @description smallest idle_seconds that is not 0 */
            idle_min_seconds: number;
            /** @description lifetime of a presigned link */
            link_seconds: number;
            /** @description interactive streams that a tenant may have open at once on one worker */
            live_streams: number;
            /** @description rules in allow_hosts of one sandbox */
            max_allow_hosts: number;
            /** @description one artifact */
            max_artifact_bytes: number;
            /** @description files of one run */
            max_artifacts: number;
            /** @description jobs of one batch */
            max_batch: number;
            /** @description JSON body */
            max_body_bytes: number;
            /** @description values of a JSON body, arrays and objects counted */
            max_body_values: number;
            /** @description code of one execution */
            max_code_bytes: number;
            /** @description commands of one job */
            max_commands: number;
            /** @description kernels of a sandbox */
            max_contexts: number;
            /** @description variables of one request */
            max_env: number;
            /** @description names and values of them, together */
            max_env_bytes: number;
            /** @description one uploaded file or tar */
            max_file_bytes: number;
            /** @description rich result kept in the result */
            max_inline_rich_bytes: number;
            /** @description files of one run, together */
            max_input_bytes: number;
            /** @description key or value of a label */
            max_label_bytes: number;
            /** @description labels of a sandbox */
            max_labels: number;
            /** @description name of a sandbox */
            max_name_bytes: number;
            /** @description output of a stream of a job that is kept at all, in MiB; see on_output_limit */
            max_output_mb: number;
            /** @description bytes of one package's name and versions */
            max_package_bytes: number;
            /** @description packages of one request */
            max_packages: number;
            /** @description readers of the output of one process at once */
            max_process_readers: number;
            /** @description how often a process is started again after runs of less than a minute */
            max_process_restarts: number;
            /** @description processes that callers started in a sandbox beside its jobs and that run at once */
            max_processes: number;
            /** @description jobs of a tenant that wait in one queue */
            max_queue_depth: number;
            /** @description unfinished jobs of a tenant */
            max_queued: number;
            /** @description output of all commands of a job kept in the result */
            max_result_inline_bytes: number;
            /** @description bytes of the value of one secret */
            max_secret_bytes: number;
            /** @description secrets of one sandbox */
            max_secrets: number;
            /** @description output of a stream sent as events */
            max_stream_event_bytes: number;
            /** @description output of a stream kept in the result */
            max_stream_inline_bytes: number;
            /** @description queued jobs of one sandbox */
            max_waiting: number;
            /** @description memory of a sandbox */
            memory_mb: components["schemas"]["IntRange"];
            /** @description processes and threads of a sandbox */
            pids: components["schemas"]["IntRange"];
            /** @description how long finished jobs and artifacts are kept */
            retention_seconds: number;
            /** @description timeout_seconds when none is given */
            timeout_default_seconds: number;
            /** @description largest timeout_seconds */
            timeout_max_seconds: number;
            /** @description ttl_seconds when none is given */
            ttl_default_seconds: number;
            /** @description largest ttl_seconds */
            ttl_max_seconds: number;
            /** @description smallest ttl_seconds */
            ttl_min_seconds: number;
            /** @description largest wait; more counts as this */
            wait_max_seconds: number;
        };
        Link: {
            /** @description presigned link; it expires */
            url: string;
        };
        Links: {
            /** @description path to DELETE to cancel it */
            cancel: string;
            /** @description path of its events */
            events: string;
            /** @description path of the whole request */
            request: string;
            /** @description path of the job */
            self: string;
        };
        Machine: {
            /** @description cores */
            cpus: number;
            /** @description programs that run or wait for a core, a mean over the last minute */
            load: number;
            /** @description MiB of memory */
            memory_mb: number;
            /** @description how much of that is not available to programs */
            used_mb: number;
        };
        Minute: {
            /**
             * Format: date-time
             * @description its beginning
             */
            at: string;
            /** @description jobs that ended */
            ended: number;
            /** @description of them, those that neither completed nor were canceled */
            failed: number;
            /** @description longest time from acceptance to claim */
            max_wait_ms: number;
            /** @description mean time in the sandbox; 0 without jobs */
            run_ms: number;
            /** @description mean time from acceptance to claim; 0 without jobs */
            wait_ms: number;
        };
        MinuteItems: {
            /** @description the entries */
            items: components["schemas"]["Minute"][];
        };
        MoveRequest: {
            /** @description http(s) address that gets the finished job */
            callback_url?: string;
            /** @description path in the workspace */
            from: string;
            /** @description new path in the workspace */
            to: string;
        };
        NewKey: {
            /** @description the record of the key */
            key: components["schemas"]["Key"];
            /** @description the key itself; it is shown only now */
            secret: string;
        };
        NewSecret: {
            /** @description the value, at least 8 characters; it is stored encrypted until the sandbox ends and never shown */
            value: string;
        };
        NodeNeed: {
            /** @description memory and cores that they ask for */
            asked: components["schemas"]["Room"];
            /** @description GPUs that they ask for */
            asked_gpus: number;
            /** @description what nodes have for sandboxes */
            capacity: components["schemas"]["Room"];
            /** @description nodes that are drained, which are not among nodes */
            draining: number;
            /** @description nodes whose workers accept no jobs, which are not among nodes */
            failing: number;
            /** @description their ids, at most 100; drain a node before you remove it */
            idle: string[];
            /** @description nodes that could be removed: nothing is on them but members of the warm pool, and nothing that waits needs them */
            idle_nodes: number;
            /**
             * @description nodes without GPUs, or with some
             * @enum {string}
             */
            kind: "cpu" | "gpu";
            /** @description the model of their GPUs, or of most of them; empty without GPUs */
            model: string;
            /** @description nodes that take new sandboxes */
            nodes: number;
            /** @description how long the first of them has waited; 0 if none waits */
            oldest_seconds: number;
            /** @description of them, those for which the nodes that exist have room */
            placeable: number;
            /** @description members of the warm pool that nodes want and have not; they are started while nothing waits, and do not count as waiting */
            pool_missing: number;
            /** @description how much of that is reserved for sandboxes, without idle members of the warm pool, which give way */
            promised: components["schemas"]["Room"];
            /** @description of them, those that no node of the kind could take even if it were empty, which more of them do not help */
            unfit: number;
            /** @description creates, and runs that make a sandbox, that have waited for at least 5 seconds; not those that a tenant's quota max_running holds back */
            waiting: number;
            /** @description how many nodes would take everything that waits, without those that are idle; at least 1 while there is one */
            wanted: number;
        };
        NodeNeedItems: {
            /** @description the entries */
            items: components["schemas"]["NodeNeed"][];
        };
        NoteResult: {
            /** @description what the caller should know, a sentence each */
            notes: string[];
        };
        Package: {
            /** @description the job that installs it, or the last one that did */
            job_id?: string;
            /**
             * @description what installed it
             * @enum {string}
             */
            manager?: "pip" | "npm";
            /** @description why it failed, or what to do next */
            message?: string;
            /** @description name of the package, normalised by PEP 503 */
            name: string;
            /**
             * @description status of the package
             * @enum {string}
             */
            status: "installing" | "installed" | "failed" | "not_found";
            /** @description the installed version */
            version?: string;
        };
        PackageItems: {
            /** @description the entries */
            items: components["schemas"]["Package"][];
        };
        PackagesRequest: {
            /** @description http(s) address that gets the finished job */
            callback_url?: string;
            /**
             * @description the installer
             * @default pip
             * @enum {string}
             */
            manager?: "pip" | "npm";
            /** @description names, with a version if wanted: numpy, pandas>=2 */
            packages: string[];
            /**
             * @description seconds that the install may take
             * @default 300
             */
            timeout_seconds?: number;
        };
        PartState: {
            /** @description what is wrong with it */
            detail?: string;
            /** @description it works */
            ok: boolean;
        };
        PoolStock: {
            /** @description name of the image */
            image: string;
            /** @description ready members on the node */
            ready: number;
            /** @description OCI runtime; absent: the default of the image on this node */
            runtime?: string;
            /** @description target of the worker's settings */
            target: number;
        };
        Port: {
            /** @description address on which the program listens; 0.0.0.0 and :: are all of the sandbox */
            address: string;
            /** @description its command, shortened; empty: it is not known */
            command: string;
            /** @description process that listens; null: it is not known */
            pid: number | null;
            /** @description its number */
            port: number;
        };
        PortLink: {
            /**
             * Format: date-time
             * @description when it stops working
             */
            expires_at: string;
            /** @description the port */
            port: number;
            /** @description address that leads to the port, for whoever has it */
            url: string;
        };
        PortLinkRequest: {
            /** @description how long the link works, 1 to 604800; default 3600 */
            expires_seconds?: number;
            /** @description make the link a path below the API's own address (/p/…), for programs that do not resolve the host of a port. Its pages have an opaque origin; default false */
            path_style?: boolean;
            /** @description port of the sandbox */
            port: number;
        };
        Ports: {
            /** @description ports on which programs of the sandbox listen, by number */
            items: components["schemas"]["Port"][];
        };
        post_jobs_batch_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_run_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_id_commands_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_id_execute_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_id_files_move_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_id_files_query: {
            /**
             * @description directory in the workspace
             * @default
             */
            path?: string;
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_id_fs_query: {
            /**
             * @description absolute, or relative to the workspace
             * @default
             */
            path?: string;
        };
        post_sandboxes_id_hibernate_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_id_interrupt_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_id_packages_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_id_processes_process_stdin_query: {
            /**
             * @description end the input after the body; for a terminal this types control-D
             * @default false
             */
            close?: boolean;
        };
        post_sandboxes_id_restart_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_id_resume_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        post_sandboxes_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        Problem: {
            /**
             * @description kind of the error
             * @enum {string}
             */
            code: "invalid" | "unauthorized" | "not_found" | "conflict" | "too_large" | "exhausted" | "unavailable" | "internal";
            /** @description what is wrong and what to do */
            detail: string;
            /** @description the fields of the body that are wrong, at most 20; absent where the problem is not in the body */
            errors?: components["schemas"]["FieldError"][];
            /** @description the quota that is used up; absent where the problem is another one */
            quota?: components["schemas"]["Quota"];
            /** @description id of the request, found in the server's log */
            request_id: string;
            /** @description status code of the answer */
            status: number;
            /** @description the kind of problem */
            title: string;
            /** @description always about:blank */
            type: string;
        };
        Process: {
            /** @description the program and its arguments, if the request had them */
            argv?: string[];
            /** @description the command, if the request had one */
            command?: string;
            /** @description when it ended; null: it runs */
            ended_at: string | null;
            /** @description its exit code, 128 and the number of the signal that ended it; null: it runs */
            exit_code: number | null;
            /** @description id of the process; empty where a pid was given that no caller started */
            id: string;
            /** @description name that the caller gave */
            name: string;
            /** @description it was ended since a limit of the sandbox, such as its memory, was reached */
            out_of_memory: boolean;
            /** @description its number in the sandbox; 0: it waits until it is started again */
            pid: number;
            /** @description size of its terminal; null: it has none */
            pty: components["schemas"]["TerminalSize"] | null;
            /**
             * @description when it is started again
             * @enum {string}
             */
            restart: "never" | "on-failure";
            /** @description how often it was started again */
            restarts: number;
            /**
             * Format: date-time
             * @description when it was started, the first time
             */
            started_at: string;
            /**
             * @description whether it runs
             * @enum {string}
             */
            state: "running" | "exited";
            /** @description it was started with an input */
            stdin: boolean;
            /** @description it was ended by DELETE */
            stopped: boolean;
            /** @description it was ended after timeout_seconds */
            timed_out: boolean;
        };
        Processes: {
            /** @description the processes, the oldest first; of those that have ended, the newest 64 */
            items: components["schemas"]["Process"][];
            /** @description with all=true: the processes that run in the sandbox, those of jobs and kernels too, by pid; the first 1000 */
            running?: components["schemas"]["RunningProcess"][];
        };
        ProcessRequest: {
            /** @description a program and its arguments, instead of command */
            argv?: string[];
            /** @description a command for the shell of the image */
            command?: string;
            /** @description working directory, relative to the workspace */
            cwd?: string;
            /** @description environment of this process only; a name has at most 128 bytes */
            env?: {
                [key: string]: string;
            };
            /** @description seconds without a reader of its output, also at the beginning, after which it gets SIGHUP, as when a terminal is closed; absent: never */
            hangup_seconds?: number;
            /** @description name of the process; need not be unique */
            name?: string;
            /** @description run it on a terminal of this size; its output is all stdout then */
            pty?: components["schemas"]["TerminalSize"];
            /**
             * @description on-failure: start it again after an exit code other than 0, after a pause that doubles from 0.1 to 30 seconds, until it was ended by DELETE or its timeout, or failed soon after 10 of them in a row; default never
             * @enum {string}
             */
            restart?: "never" | "on-failure";
            /** @description give it an input that POST …/stdin writes to; a terminal always has one. Otherwise its input is empty */
            stdin?: boolean;
            /** @description seconds that it may run; absent: as long as the sandbox */
            timeout_seconds?: number;
        };
        ProgressData: {
            /** @description how much is done */
            done?: number;
            /** @description current step */
            message: string;
            /** @description how much there is */
            total?: number;
        };
        put_sandboxes_id_files_path_query: {
            /** @description seconds to hold the answer until the job is finished; more counts as the maximum */
            wait?: number;
        };
        put_sandboxes_id_fs_path_query: {
            /**
             * @description write behind the end
             * @default false
             */
            append?: boolean;
            /** @description permissions in octal digits; default: those that the file has, or 0644 */
            mode?: string;
            /** @description write from this byte on and keep the rest */
            offset?: number;
        };
        Queue: {
            /** @description waiting jobs */
            depth: number;
            /** @description its jobs that ended in a minute, a mean over the last five; 0 for keys without the scope admin */
            ended_per_minute: number;
            /** @description devices for sandboxes of this queue; 0: none, or a key without the scope admin */
            gpus: number;
            /** @description how many of them are leased to sandboxes */
            gpus_leased: number;
            /** @description name of the queue */
            name: string;
            /** @description age of the oldest waiting job, on the queue or parked by its tenant's share; 0 if none waits */
            oldest_seconds: number;
            /** @description running jobs */
            running: number;
        };
        QueueItems: {
            /** @description the entries */
            items: components["schemas"]["Queue"][];
        };
        Quota: {
            /** @description its value; null: no bound */
            limit: number | null;
            /**
             * @description name of the quota
             * @enum {string}
             */
            name: "max_sandboxes" | "max_memory_mb" | "max_cpus" | "max_gpus" | "max_running" | "max_queued" | "max_stored_mb" | "requests_per_minute" | "max_connections";
            /** @description how much of it is used now */
            used: number;
        };
        Ready: {
            /** @description redis, storage and workers */
            parts: {
                [key: string]: components["schemas"]["PartState"];
            };
            /**
             * @description whether the farm can run jobs
             * @enum {string}
             */
            status: "ready" | "unready";
        };
        Resources: {
            /** @description cores */
            cpus: number;
            /** @description MiB of the workspace */
            disk_mb: number;
            /** @description MiB of memory; files in the workspace and /tmp count */
            memory_mb: number;
            /** @description processes and threads */
            pids: number;
        };
        ResourcesRequest: {
            /**
             * @description cores
             * @default 2
             */
            cpus?: number;
            /**
             * @description MiB of the workspace
             * @default 1024
             */
            disk_mb?: number;
            /**
             * @description MiB of memory
             * @default 2048
             */
            memory_mb?: number;
            /**
             * @description processes and threads
             * @default 256
             */
            pids?: number;
        };
        /** @description what a job produced; which of these by its kind */
        Result: components["schemas"]["ExecuteResult"] | components["schemas"]["CommandResult"] | components["schemas"]["FileResult"] | components["schemas"]["InstallResult"] | components["schemas"]["NoteResult"];
        Rich: {
            /** @description the artifact that holds a large value */
            artifact_id?: string;
            /** @description the value: text as it is, anything else base64 */
            data?: string;
            /** @description number of the displayed value, from 0: entries of one value share it. A value that was updated in place keeps its number; results hold its last state */
            display: number;
            /** @description the name that the code gave the value; at most 256 bytes */
            display_id?: string;
            /** @description an object: how to show the value, such as its size; all entries of a value have the same */
            metadata?: Record<string, unknown>;
            /** @description MIME type */
            mime: string;
            /** @description the value of the last expression of the code, and not one that the code displayed */
            result?: boolean;
            /** @description link to a large value */
            url?: string;
        };
        Room: {
            /** @description cores */
            cpus: number;
            /** @description MiB of memory */
            memory_mb: number;
        };
        /**
         * @description method and path of a route
         * @enum {string}
         */
        Route: "DELETE /v1/artifacts/{id}" | "DELETE /v1/jobs/{id}" | "DELETE /v1/keys/{id}" | "DELETE /v1/nodes/{id}/drain" | "DELETE /v1/sandboxes/{id}" | "DELETE /v1/sandboxes/{id}/files/{path}" | "DELETE /v1/sandboxes/{id}/fs/{path}" | "DELETE /v1/sandboxes/{id}/processes/{process}" | "GET /healthz" | "GET /readyz" | "GET /v1/activity" | "GET /v1/artifacts" | "GET /v1/artifacts/{id}" | "GET /v1/artifacts/{id}/meta" | "GET /v1/audit" | "GET /v1/events" | "GET /v1/images" | "GET /v1/jobs" | "GET /v1/jobs/{id}" | "GET /v1/jobs/{id}/events" | "GET /v1/jobs/{id}/request" | "GET /v1/keys" | "GET /v1/limits" | "GET /v1/nodes/{id}/drain" | "GET /v1/queues" | "GET /v1/sandboxes" | "GET /v1/sandboxes/{id}" | "GET /v1/sandboxes/{id}/egress" | "GET /v1/sandboxes/{id}/files" | "GET /v1/sandboxes/{id}/files/{path}" | "GET /v1/sandboxes/{id}/fs" | "GET /v1/sandboxes/{id}/fs/{path}" | "GET /v1/sandboxes/{id}/packages" | "GET /v1/sandboxes/{id}/packages/{name}" | "GET /v1/sandboxes/{id}/ports" | "GET /v1/sandboxes/{id}/ports/{port}/{path}" | "GET /v1/sandboxes/{id}/processes" | "GET /v1/sandboxes/{id}/processes/{process}" | "GET /v1/sandboxes/{id}/processes/{process}/attach" | "GET /v1/sandboxes/{id}/processes/{process}/events" | "GET /v1/sandboxes/{id}/tcp/{port}" | "GET /v1/sandboxes/{id}/watch" | "GET /v1/scale" | "GET /v1/tenants" | "GET /v1/tenants/{name}" | "GET /v1/tenants/{name}/usage" | "GET /v1/usage" | "GET /v1/workers" | "HEAD /v1/sandboxes/{id}/files/{path}" | "HEAD /v1/sandboxes/{id}/fs/{path}" | "PATCH /v1/sandboxes/{id}" | "PATCH /v1/sandboxes/{id}/fs/{path}" | "PATCH /v1/tenants/{name}" | "POST /v1/jobs/batch" | "POST /v1/keys" | "POST /v1/nodes/{id}/drain" | "POST /v1/run" | "POST /v1/sandboxes" | "POST /v1/sandboxes/{id}/commands" | "POST /v1/sandboxes/{id}/execute" | "POST /v1/sandboxes/{id}/files" | "POST /v1/sandboxes/{id}/files/move" | "POST /v1/sandboxes/{id}/fs" | "POST /v1/sandboxes/{id}/fs/copy" | "POST /v1/sandboxes/{id}/fs/link" | "POST /v1/sandboxes/{id}/fs/move" | "POST /v1/sandboxes/{id}/hibernate" | "POST /v1/sandboxes/{id}/interrupt" | "POST /v1/sandboxes/{id}/packages" | "POST /v1/sandboxes/{id}/port-links" | "POST /v1/sandboxes/{id}/processes" | "POST /v1/sandboxes/{id}/processes/{process}/resize" | "POST /v1/sandboxes/{id}/processes/{process}/signal" | "POST /v1/sandboxes/{id}/processes/{process}/stdin" | "POST /v1/sandboxes/{id}/restart" | "POST /v1/sandboxes/{id}/resume" | "PUT /v1/sandboxes/{id}/files/{path}" | "PUT /v1/sandboxes/{id}/fs/{path}" | "PUT /v1/tenants/{name}";
        RunningProcess: {
            /** @description its arguments, up to 256 bytes */
            command: string;
            /** @description CPU time that it has used */
            cpu_seconds: number;
            /** @description its memory (resident), with what it shares with others */
            memory_bytes: number;
            /** @description id of the process or job that it belongs to, or kernel; empty: unknown. Taken from its environment, which code can change */
            owner: string;
            /** @description number of the process that started it, or 1 if that has ended */
            parent: number;
            /** @description its number in the sandbox */
            pid: number;
            /**
             * Format: date-time
             * @description when it was started, to a hundredth of a second
             */
            started_at: string;
        };
        RunRequest: {
            /** @description rules of the hosts that the network allowlist reaches, as for POST /v1/sandboxes */
            allow_hosts?: string[];
            /** @description install what the code imports and the sandbox lacks, and what the workspace's requirements.txt lists */
            auto_install?: boolean;
            /** @description http(s) address that gets the finished job */
            callback_url?: string;
            /** @description the code */
            code: string;
            /** @description environment of the sandbox; a name has at most 128 bytes */
            env?: {
                [key: string]: string;
            };
            /** @description name of the file in the workspace that the code is from: its __file__ and sys.argv[0]; errors name it. Python only */
            filename?: string;
            /** @description files to put into the workspace first */
            files?: components["schemas"]["InputFile"][];
            /** @description devices; needs a worker that has them */
            gpu?: components["schemas"]["GPURequest"];
            /**
             * @description name of the image (GET /v1/images)
             * @default python
             */
            image?: string;
            /** @description labels of the sandbox */
            labels?: {
                [key: string]: string;
            };
            /**
             * @description a language of the image
             * @default python
             */
            language?: string;
            /**
             * @description what the sandbox can reach: nothing, package indexes, or these and the hosts of allow_hosts; allowlist must be enabled by the operator
             * @default packages
             * @enum {string}
             */
            network?: "none" | "packages" | "allowlist";
            /**
             * @description what happens when stdout or stderr exceeds limits.max_output_mb: continue drops the middle of the output, stop ends the code
             * @default continue
             * @enum {string}
             */
            on_output_limit?: "continue" | "stop";
            /** @description Python packages to install first, as in POST …/packages */
            packages?: string[];
            /** @description what the sandbox may use */
            resources?: components["schemas"]["ResourcesRequest"];
            /** @description OCI runtime of the sandbox, such as runsc (gVisor), within what the operator allows; absent: the default of the tenant, or else of the image, or else of the node */
            runtime?: string;
            /** @description headers that the proxy adds to HTTPS requests for a host, as for POST /v1/sandboxes */
            secrets?: {
                [key: string]: components["schemas"]["Secret"];
            };
            /**
             * @description seconds that the code may run
             * @default 300
             */
            timeout_seconds?: number;
        };
        Sandbox: {
            /** @description rules of the hosts that it can reach, with the network allowlist */
            allow_hosts: string[];
            /** @description when it ended; null: still open */
            closed_at: string | null;
            /**
             * Format: date-time
             * @description when it was requested
             */
            created_at: string;
            /** @description names of its environment variables */
            env_names: string[];
            /**
             * Format: date-time
             * @description its deadline
             */
            expires_at: string;
            /** @description 1 at first; rises each time that its creation begins anew, so what an older one writes is refused */
            generation: number;
            /** @description its devices; null: none */
            gpu: components["schemas"]["GPU"] | null;
            /** @description id of the sandbox */
            id: string;
            /** @description life after the end of its last use; 0: no idle limit */
            idle_seconds: number;
            /** @description name of its image */
            image: string;
            /** @description the caller's labels */
            labels: {
                [key: string]: string;
            };
            /**
             * Format: date-time
             * @description end of its last use
             */
            last_used_at: string;
            /** @description name that the caller gave; need not be unique */
            name: string;
            /**
             * @description what it can reach
             * @enum {string}
             */
            network: "none" | "packages" | "allowlist";
            /**
             * @description what happens when it has been idle for idle_seconds
             * @enum {string}
             */
            on_idle: "close" | "hibernate";
            /** @description it was made by a run, and is closed with it */
            one_shot: boolean;
            /** @description why it failed, was lost or ended; empty otherwise */
            reason: string;
            /** @description what it may use */
            resources: components["schemas"]["Resources"];
            /** @description OCI runtime of its container, such as runc or runsc (gVisor); empty until a worker has begun to start it, unless one was asked for */
            runtime: string;
            /** @description names of its secrets, which the proxy adds to requests; values are never shown */
            secrets: string[];
            /**
             * @description state of the sandbox
             * @enum {string}
             */
            state: "queued" | "starting" | "ready" | "busy" | "hibernated" | "closing" | "closed" | "expired" | "failed" | "lost";
            /** @description life from its creation, or from the last PATCH */
            ttl_seconds: number;
            /** @description what it used of late, the oldest first: at most 20 samples, about worker.reconcile_every apart */
            usage: components["schemas"]["UseSample"][];
        };
        SandboxList: {
            /** @description the entries of this page */
            items: components["schemas"]["Sandbox"][];
            /** @description send it as cursor to get the next page; null: this is the last */
            next_cursor: string | null;
        };
        Secret: {
            /** @description name of the header, and what stands before the value if anything does: X-Api-Key, or Authorization: Bearer */
            header: string;
            /** @description one exact host name, which allow_hosts must allow; the port is 443 */
            host: string;
            /** @description the value, at least 8 characters; it is stored encrypted until the sandbox ends and never shown */
            value: string;
        };
        SignalRequest: {
            /** @description such as SIGINT, SIGTERM, SIGKILL, SIGHUP, SIGUSR1, SIGSTOP, SIGCONT */
            signal: string;
        };
        SpecFile: {
            /** @description path in the workspace */
            path: string;
            /** @description bytes */
            size: number;
        };
        StateData: {
            /**
             * @description state of the job
             * @enum {string}
             */
            state: "queued" | "running" | "completed" | "failed" | "timed_out" | "canceled" | "lost";
        };
        Tenant: {
            /** @description rules of the hosts that its sandboxes may reach at most, within the farm's; null: those of the farm; empty: none */
            allow_hosts: string[] | null;
            /** @description its name */
            name: string;
            /** @description quotas that are not the farm's default, by name; -1: no bound */
            own_quotas: {
                [key: string]: number;
            };
            /** @description all quotas, with what is used of them now */
            quotas: components["schemas"]["Quota"][];
            /** @description OCI runtimes that its sandboxes may have, the default first; empty: those of the farm */
            runtimes: string[];
        };
        TenantChange: {
            /** @description names of settings that get the farm's default */
            default?: string[];
            /** @description settings that get a value of their own; -1 means no bound */
            set: components["schemas"]["TenantRequest"];
        };
        TenantList: {
            /** @description the entries of this page */
            items: components["schemas"]["Tenant"][];
            /** @description send it as cursor to get the next page; null: this is the last */
            next_cursor: string | null;
        };
        TenantRequest: {
            /** @description rules of the hosts that its sandboxes may reach at most, within the farm's; empty: none */
            allow_hosts?: string[];
            /** @description API requests that are answered at once */
            max_connections?: number;
            /** @description cores of open sandboxes, together */
            max_cpus?: number;
            /** @description GPUs of open sandboxes, together */
            max_gpus?: number;
            /** @description MiB of memory of open sandboxes, together */
            max_memory_mb?: number;
            /** @description unfinished jobs */
            max_queued?: number;
            /** @description jobs that run at once; more stay queued */
            max_running?: number;
            /** @description open sandboxes */
            max_sandboxes?: number;
            /** @description MiB of artifacts, together, 48 KiB more for each; files beyond it stay in the sandbox */
            max_stored_mb?: number;
            /** @description API requests in a minute */
            requests_per_minute?: number;
            /** @description OCI runtimes that its sandboxes may have, the default first; empty: those of the farm */
            runtimes?: string[];
        };
        TerminalSize: {
            /** @description columns, 1 to 1000 */
            cols: number;
            /** @description rows, 1 to 1000 */
            rows: number;
        };
        TextData: {
            /** @description output */
            text: string;
        };
        Timings: {
            /** @description milliseconds until a worker started it */
            queue_ms: number;
            /** @description milliseconds in the sandbox */
            run_ms: number;
            /** @description milliseconds for its artifacts */
            upload_ms: number;
        };
        Truncated: {
            /** @description stderr was cut */
            stderr: boolean;
            /** @description stdout was cut */
            stdout: boolean;
        };
        UpdateRequest: {
            /** @description the new rules of a sandbox with the network allowlist; they replace the old ones, and connections that they do not allow end */
            allow_hosts?: string[];
            /** @description new life after the end of the last use; 0: no idle limit */
            idle_seconds?: number;
            /** @description the new labels; they replace the old ones */
            labels?: {
                [key: string]: string;
            };
            /** @description new name */
            name?: string;
            /** @description new values of secrets that the sandbox has, by name; requests from then on have them. Names, hosts and headers stay as they were */
            secrets?: {
                [key: string]: components["schemas"]["NewSecret"];
            };
            /** @description new life, from now */
            ttl_seconds?: number;
        };
        Usage: {
            /** @description what it has used, for each day in UTC with use, the oldest first */
            days: components["schemas"]["DayUsage"][];
            /** @description its quotas, with what is used of them now */
            quotas: components["schemas"]["Quota"][];
            /** @description name of the tenant */
            tenant: string;
        };
        UseSample: {
            /** @description cores, a mean since the sample before */
            cpus: number;
            /** @description MiB of memory, with files in the workspace and /tmp */
            memory_mb: number;
        };
        Waiting: {
            /**
             * @description fifo: other jobs of its sandbox come first; max_running: the quota of its tenant; queue_share: its tenant has as many tasks in the queue as a tenant may; queue: it is in the queue, and no obstacle is known; no_worker: no live worker could take it; worker_failed: those that could accept no jobs; no_gpu_model, no_image, no_runtime: no live worker offers it; drain: the nodes that could take it are drained; too_large: no node is large enough; no_room: no node has its memory and cores free; no_gpu: no node has its GPUs free; busy: all slots of the workers are taken
             * @enum {string}
             */
            code: "fifo" | "max_running" | "queue_share" | "queue" | "no_worker" | "no_gpu_model" | "no_image" | "no_runtime" | "drain" | "worker_failed" | "too_large" | "no_room" | "no_gpu" | "busy";
            /** @description what it waits for, in words */
            message: string;
        };
        WatchReady: {
            /** @description how many directories that are now */
            directories: number;
            /** @description what is watched */
            path: string;
        };
        Worker: {
            /** @description capacity of its node for sandboxes; zero while the node is drained */
            capacity: components["schemas"]["Room"];
            /** @description that its node is drained, and what is left on it; the node's capacity is zero then; null if it is not drained, or for keys without the scope admin */
            drain: components["schemas"]["Drain"] | null;
            /** @description devices that its node offers to sandboxes */
            gpus: components["schemas"]["GPUDevice"][];
            /** @description how many of them are leased to sandboxes */
            gpus_leased: number;
            /** @description those of runtimes whose sandboxes can hibernate on its node */
            hibernates: string[];
            /** @description its host name */
            host: string;
            /** @description id of the worker */
            id: string;
            /** @description names of its images */
            images: string[];
            /** @description host of its node, and what all of its programs use; null: not known, such as with an engine on another host */
            machine: components["schemas"]["Machine"] | null;
            /** @description the engine it is attached to */
            node: string;
            /** @description pooled sandboxes of its node */
            pool: components["schemas"]["PoolStock"][];
            /** @description why it accepts no jobs now; empty if it does */
            problem: string;
            /** @description how much of that is reserved for sandboxes */
            promised: components["schemas"]["Room"];
            /** @description queues it serves */
            queues: string[];
            /** @description jobs now */
            running: number;
            /** @description OCI runtimes that sandboxes of its node may have, the default first */
            runtimes: string[];
            /** @description open sandboxes of its node, hibernated ones too; for keys without the scope admin those of their tenant */
            sandboxes: number;
            /**
             * Format: date-time
             * @description its last heartbeat
             */
            seen_at: string;
            /** @description jobs of one tenant at once; several have twice as many in all */
            slots: number;
            /**
             * Format: date-time
             * @description when it started
             */
            started_at: string;
            /** @description its version */
            version: string;
        };
        WorkerItems: {
            /** @description the entries */
            items: components["schemas"]["Worker"][];
        };
        Written: {
            /** @description bytes */
            written: number;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type Artifact = components['schemas']['Artifact'];
export type ArtifactList = components['schemas']['ArtifactList'];
export type AuditEntry = components['schemas']['AuditEntry'];
export type AuditEntryList = components['schemas']['AuditEntryList'];
export type BatchOutcome = components['schemas']['BatchOutcome'];
export type BatchRequest = components['schemas']['BatchRequest'];
export type BatchResult = components['schemas']['BatchResult'];
export type ChangesDropped = components['schemas']['ChangesDropped'];
export type ClearData = components['schemas']['ClearData'];
export type CodeError = components['schemas']['CodeError'];
export type CommandOutcome = components['schemas']['CommandOutcome'];
export type CommandRequest = components['schemas']['CommandRequest'];
export type CommandResult = components['schemas']['CommandResult'];
export type ControlRequest = components['schemas']['ControlRequest'];
export type Created = components['schemas']['Created'];
export type CreateRequest = components['schemas']['CreateRequest'];
export type DayUsage = components['schemas']['DayUsage'];
export type DeleteJobsIdQuery = components['schemas']['delete_jobs_id_query'];
export type DeleteSandboxesIdFilesPathQuery = components['schemas']['delete_sandboxes_id_files_path_query'];
export type DeleteSandboxesIdQuery = components['schemas']['delete_sandboxes_id_query'];
export type DisplayData = components['schemas']['DisplayData'];
export type Drain = components['schemas']['Drain'];
export type DrainRequest = components['schemas']['DrainRequest'];
export type DroppedBytes = components['schemas']['DroppedBytes'];
export type EgressEntry = components['schemas']['EgressEntry'];
export type EgressEntryList = components['schemas']['EgressEntryList'];
export type ExecuteRequest = components['schemas']['ExecuteRequest'];
export type ExecuteResult = components['schemas']['ExecuteResult'];
export type FieldError = components['schemas']['FieldError'];
export type FileChange = components['schemas']['FileChange'];
export type FileEntry = components['schemas']['FileEntry'];
export type FileResult = components['schemas']['FileResult'];
export type Files = components['schemas']['Files'];
export type FleetEvent = components['schemas']['FleetEvent'];
export type FleetEventItems = components['schemas']['FleetEventItems'];
export type FloatRange = components['schemas']['FloatRange'];
export type FsChange = components['schemas']['FSChange'];
export type FsEntry = components['schemas']['FSEntry'];
export type FsLink = components['schemas']['FSLink'];
export type FsListing = components['schemas']['FSListing'];
export type FsMove = components['schemas']['FSMove'];
export type GetArtifactsQuery = components['schemas']['get_artifacts_query'];
export type GetAuditQuery = components['schemas']['get_audit_query'];
export type GetEventsQuery = components['schemas']['get_events_query'];
export type GetJobsIdEventsQuery = components['schemas']['get_jobs_id_events_query'];
export type GetJobsIdQuery = components['schemas']['get_jobs_id_query'];
export type GetJobsQuery = components['schemas']['get_jobs_query'];
export type GetKeysQuery = components['schemas']['get_keys_query'];
export type GetSandboxesIdEgressQuery = components['schemas']['get_sandboxes_id_egress_query'];
export type GetSandboxesIdFilesPathQuery = components['schemas']['get_sandboxes_id_files_path_query'];
export type GetSandboxesIdFilesQuery = components['schemas']['get_sandboxes_id_files_query'];
export type GetSandboxesIdFsPathQuery = components['schemas']['get_sandboxes_id_fs_path_query'];
export type GetSandboxesIdFsQuery = components['schemas']['get_sandboxes_id_fs_query'];
export type GetSandboxesIdPackagesNameQuery = components['schemas']['get_sandboxes_id_packages_name_query'];
export type GetSandboxesIdProcessesProcessAttachQuery = components['schemas']['get_sandboxes_id_processes_process_attach_query'];
export type GetSandboxesIdProcessesProcessEventsQuery = components['schemas']['get_sandboxes_id_processes_process_events_query'];
export type GetSandboxesIdProcessesQuery = components['schemas']['get_sandboxes_id_processes_query'];
export type GetSandboxesIdWatchQuery = components['schemas']['get_sandboxes_id_watch_query'];
export type GetSandboxesQuery = components['schemas']['get_sandboxes_query'];
export type GetTenantsNameUsageQuery = components['schemas']['get_tenants_name_usage_query'];
export type GetTenantsQuery = components['schemas']['get_tenants_query'];
export type GetUsageQuery = components['schemas']['get_usage_query'];
export type Gpu = components['schemas']['GPU'];
export type GpuDevice = components['schemas']['GPUDevice'];
export type GpuRequest = components['schemas']['GPURequest'];
export type HeadSandboxesIdFilesPathQuery = components['schemas']['head_sandboxes_id_files_path_query'];
export type Health = components['schemas']['Health'];
export type HibernateRequest = components['schemas']['HibernateRequest'];
export type Image = components['schemas']['Image'];
export type ImageItems = components['schemas']['ImageItems'];
export type InputFile = components['schemas']['InputFile'];
export type InstalledOne = components['schemas']['InstalledOne'];
export type InstallResult = components['schemas']['InstallResult'];
export type IntRange = components['schemas']['IntRange'];
export type Job = components['schemas']['Job'];
export type JobError = components['schemas']['JobError'];
export type JobList = components['schemas']['JobList'];
export type JobSpec = components['schemas']['JobSpec'];
export type Key = components['schemas']['Key'];
export type KeyList = components['schemas']['KeyList'];
export type KeyRequest = components['schemas']['KeyRequest'];
export type Limits = components['schemas']['Limits'];
export type Link = components['schemas']['Link'];
export type Links = components['schemas']['Links'];
export type Machine = components['schemas']['Machine'];
export type Minute = components['schemas']['Minute'];
export type MinuteItems = components['schemas']['MinuteItems'];
export type MoveRequest = components['schemas']['MoveRequest'];
export type NewKey = components['schemas']['NewKey'];
export type NewSecret = components['schemas']['NewSecret'];
export type NodeNeed = components['schemas']['NodeNeed'];
export type NodeNeedItems = components['schemas']['NodeNeedItems'];
export type NoteResult = components['schemas']['NoteResult'];
export type Package = components['schemas']['Package'];
export type PackageItems = components['schemas']['PackageItems'];
export type PackagesRequest = components['schemas']['PackagesRequest'];
export type PartState = components['schemas']['PartState'];
export type PoolStock = components['schemas']['PoolStock'];
export type Port = components['schemas']['Port'];
export type PortLink = components['schemas']['PortLink'];
export type PortLinkRequest = components['schemas']['PortLinkRequest'];
export type Ports = components['schemas']['Ports'];
export type PostJobsBatchQuery = components['schemas']['post_jobs_batch_query'];
export type PostRunQuery = components['schemas']['post_run_query'];
export type PostSandboxesIdCommandsQuery = components['schemas']['post_sandboxes_id_commands_query'];
export type PostSandboxesIdExecuteQuery = components['schemas']['post_sandboxes_id_execute_query'];
export type PostSandboxesIdFilesMoveQuery = components['schemas']['post_sandboxes_id_files_move_query'];
export type PostSandboxesIdFilesQuery = components['schemas']['post_sandboxes_id_files_query'];
export type PostSandboxesIdFsQuery = components['schemas']['post_sandboxes_id_fs_query'];
export type PostSandboxesIdHibernateQuery = components['schemas']['post_sandboxes_id_hibernate_query'];
export type PostSandboxesIdInterruptQuery = components['schemas']['post_sandboxes_id_interrupt_query'];
export type PostSandboxesIdPackagesQuery = components['schemas']['post_sandboxes_id_packages_query'];
export type PostSandboxesIdProcessesProcessStdinQuery = components['schemas']['post_sandboxes_id_processes_process_stdin_query'];
export type PostSandboxesIdRestartQuery = components['schemas']['post_sandboxes_id_restart_query'];
export type PostSandboxesIdResumeQuery = components['schemas']['post_sandboxes_id_resume_query'];
export type PostSandboxesQuery = components['schemas']['post_sandboxes_query'];
export type Problem = components['schemas']['Problem'];
export type Process = components['schemas']['Process'];
export type Processes = components['schemas']['Processes'];
export type ProcessRequest = components['schemas']['ProcessRequest'];
export type ProgressData = components['schemas']['ProgressData'];
export type PutSandboxesIdFilesPathQuery = components['schemas']['put_sandboxes_id_files_path_query'];
export type PutSandboxesIdFsPathQuery = components['schemas']['put_sandboxes_id_fs_path_query'];
export type Queue = components['schemas']['Queue'];
export type QueueItems = components['schemas']['QueueItems'];
export type Quota = components['schemas']['Quota'];
export type Ready = components['schemas']['Ready'];
export type Resources = components['schemas']['Resources'];
export type ResourcesRequest = components['schemas']['ResourcesRequest'];
export type Result = components['schemas']['Result'];
export type Rich = components['schemas']['Rich'];
export type Room = components['schemas']['Room'];
export type Route = components['schemas']['Route'];
export type RunningProcess = components['schemas']['RunningProcess'];
export type RunRequest = components['schemas']['RunRequest'];
export type Sandbox = components['schemas']['Sandbox'];
export type SandboxList = components['schemas']['SandboxList'];
export type Secret = components['schemas']['Secret'];
export type SignalRequest = components['schemas']['SignalRequest'];
export type SpecFile = components['schemas']['SpecFile'];
export type StateData = components['schemas']['StateData'];
export type Tenant = components['schemas']['Tenant'];
export type TenantChange = components['schemas']['TenantChange'];
export type TenantList = components['schemas']['TenantList'];
export type TenantRequest = components['schemas']['TenantRequest'];
export type TerminalSize = components['schemas']['TerminalSize'];
export type TextData = components['schemas']['TextData'];
export type Timings = components['schemas']['Timings'];
export type Truncated = components['schemas']['Truncated'];
export type UpdateRequest = components['schemas']['UpdateRequest'];
export type Usage = components['schemas']['Usage'];
export type UseSample = components['schemas']['UseSample'];
export type Waiting = components['schemas']['Waiting'];
export type WatchReady = components['schemas']['WatchReady'];
export type Worker = components['schemas']['Worker'];
export type WorkerItems = components['schemas']['WorkerItems'];
export type Written = components['schemas']['Written'];
