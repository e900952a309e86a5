package wire

// NodeNeed is how many nodes of a kind the farm needs, and why.
type NodeNeed struct {
	Kind      string   `json:"kind" enum:"cpu,gpu" doc:"nodes without GPUs, or with some"`
	Model     string   `json:"model" doc:"the model of their GPUs, or of most of them; empty without GPUs"`
	Nodes     int      `json:"nodes" doc:"nodes that take new sandboxes"`
	Wanted    int      `json:"wanted" doc:"how many nodes would take everything that waits, without those that are idle; at least 1 while there is one"`
	IdleNodes int      `json:"idle_nodes" doc:"nodes that could be removed: nothing is on them but members of the warm pool, and nothing that waits needs them"`
	Idle      []string `json:"idle" doc:"their ids, at most 100; drain a node before you remove it"`
	Draining  int      `json:"draining" doc:"nodes that are drained, which are not among nodes"`
	Failing   int      `json:"failing" doc:"nodes whose workers accept no jobs, which are not among nodes"`

	Waiting       int     `json:"waiting" doc:"creates, and runs that make a sandbox, that have waited for at least 5 seconds; not those that a tenant's quota max_running holds back"`
	OldestSeconds float64 `json:"oldest_seconds" doc:"how long the first of them has waited; 0 if none waits"`
	Asked         Room    `json:"asked" doc:"memory and cores that they ask for"`
	AskedGPUs     int     `json:"asked_gpus" doc:"GPUs that they ask for"`
	Placeable     int     `json:"placeable" doc:"of them, those for which the nodes that exist have room"`
	Unfit         int     `json:"unfit" doc:"of them, those that no node of the kind could take even if it were empty, which more of them do not help"`

	Capacity    Room `json:"capacity" doc:"what nodes have for sandboxes"`
	Promised    Room `json:"promised" doc:"how much of that is reserved for sandboxes, without idle members of the warm pool, which give way"`
	PoolMissing int  `json:"pool_missing" doc:"members of the warm pool that nodes want and have not; they are started while nothing waits, and do not count as waiting"`
}
