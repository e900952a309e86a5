package sandboxes

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// Each tenant has an index of its open sandboxes for each node, on:<node>, and the names of the nodes that have any, nodes. The scripts that
// set a sandbox's node or end it keep them exact; RepairUse restores them. Sandboxes that are closing and have no node are indexed under
// "". The tenants of a node, {nodes}:tenants:<node>, lie in another slot, so they are stored beforehand, and may name too many. The leading
// scheduler corrects them; until it does, a reconciler may not see a tenant's first sandbox of the node for a moment.

// OpenOnNode lists the sandboxes of all tenants that are on a node and not final. It reads their records, one key for each tenant that has
// any there, and one more. Records that cannot be read are left out, and an error comes with the others. Once the object store does not answer,
// it is asked for no further document.
func (s *Store) OpenOnNode(ctx context.Context, node string) ([]*farm.Sandbox, error) {
	tenants, err := s.Redis.SMembers(ctx, s.Key(db.SlotNodes, db.KeyTenantsOf, node)).Result()
	if err != nil {
		return nil, db.Wrap("list tenants of a node", err)
	}
	slices.Sort(tenants)
	ids, err := s.indexed(ctx, tenants, func(tenant string) string { return s.Key(tenant, db.KeyOnNode, node) })
	if err != nil {
		return nil, err
	}
	var out []*farm.Sandbox
	var errs []error
	silent := false
	read := func(ctx context.Context, fields map[string]string) (*farm.Sandbox, error) {
		if silent && db.IsReference(fields["doc"]) {
			return nil, nil // dropped below; the first one is an error
		}
		box, err := s.read(ctx, fields)
		if err == nil || errors.Is(err, db.ErrDocumentGone) || ctx.Err() != nil {
			return box, err
		}
		silent = silent || farm.CodeOf(err) == farm.CodeUnavailable
		errs = append(errs, err)
		return nil, nil
	}
	for i, tenant := range tenants {
		found, err := db.Fetch(ctx, s.DB, tenant, db.KeySandbox, ids[i], read)
		if err != nil {
			return nil, err
		}
		out = append(out, slices.DeleteFunc(found, func(box *farm.Sandbox) bool { return box == nil })...)
	}
	return out, errors.Join(errs...)
}

// CountOpenOn counts the sandboxes of all tenants that are on each of some nodes and not final. It reads no records, and one key for each tenant that
// has any there.
func (s *Store) CountOpenOn(ctx context.Context, nodes ...string) (map[string]int, error) {
	out := make(map[string]int, len(nodes))
	if len(nodes) == 0 {
		return out, nil
	}
	pipe := s.Redis.Pipeline()
	tenants := make([]*redis.StringSliceCmd, len(nodes))
	for i, node := range nodes {
		tenants[i] = pipe.SMembers(ctx, s.Key(db.SlotNodes, db.KeyTenantsOf, node))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, db.Wrap("list tenants of nodes", err)
	}
	pipe = s.Redis.Pipeline()
	counts := map[string][]*redis.IntCmd{}
	for i, node := range nodes {
		for _, tenant := range tenants[i].Val() {
			counts[node] = append(counts[node], pipe.SCard(ctx, s.Key(tenant, db.KeyOnNode, node)))
		}
	}
	if len(counts) == 0 {
		return out, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, db.Wrap("count open sandboxes of nodes", err)
	}
	for node, cmds := range counts {
		for _, cmd := range cmds {
			out[node] += int(cmd.Val())
		}
	}
	return out, nil
}

// OpenIDsOnNode lists a tenant's sandboxes that are on a node and not final, in no order. The node "" has those that are closing without
// a node.
func (s *Store) OpenIDsOnNode(ctx context.Context, tenant, node string) ([]farm.Ref, error) {
	ids, err := s.indexed(ctx, []string{tenant}, func(tenant string) string { return s.Key(tenant, db.KeyOnNode, node) })
	if err != nil {
		return nil, err
	}
	return db.Refs(tenant, ids[0]), nil
}

// IsOnNode reports whether a sandbox that is not final is on a node. It reads no record.
func (s *Store) IsOnNode(ctx context.Context, sandbox farm.Ref, node string) (bool, error) {
	on, err := s.Redis.SIsMember(ctx, s.Key(sandbox.Tenant, db.KeyOnNode, node), sandbox.ID).Result()
	return on, db.Wrap("look for a sandbox on a node", err)
}

// NodesOf is the node of each of a tenant's sandboxes that are on one and not final, by their ids. It reads no records.
func (s *Store) NodesOf(ctx context.Context, tenant string) (map[string]string, error) {
	nodes, err := s.Redis.SMembers(ctx, s.Index(tenant, db.IndexNodes)).Result()
	if err != nil {
		return nil, db.Wrap("list nodes of a tenant", err)
	}
	nodes = slices.DeleteFunc(nodes, func(node string) bool { return node == "" }) // those that are closing without one
	ids, err := s.indexed(ctx, nodes, func(node string) string { return s.Key(tenant, db.KeyOnNode, node) })
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i, node := range nodes {
		for _, id := range ids[i] {
			out[id] = node
		}
	}
	return out, nil
}

// NodesInUse lists the nodes that have open sandboxes and by which tenants, "" among them if sandboxes without a node are closing. It also
// corrects the tenants of each node, see OpenOnNode.
func (s *Store) NodesInUse(ctx context.Context) (map[string][]string, error) {
	tenants, err := s.Tenants(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := s.indexed(ctx, tenants, func(tenant string) string { return s.Index(tenant, db.IndexNodes) })
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for i, tenant := range tenants {
		for _, node := range nodes[i] {
			out[node] = append(out[node], tenant)
		}
	}
	return out, s.correctTenants(ctx, out)
}

// correctTenants stores the tenants of each node that is in use, and no others.
func (s *Store) correctTenants(ctx context.Context, nodes map[string][]string) error {
	pipe := s.Redis.Pipeline()
	known := map[string]*redis.StringSliceCmd{}
	for node, tenants := range nodes {
		if node != "" {
			pipe.SAdd(ctx, s.Key(db.SlotNodes, db.KeyTenantsOf, node), members(tenants)...)
			known[node] = pipe.SMembers(ctx, s.Key(db.SlotNodes, db.KeyTenantsOf, node))
		}
	}
	if len(known) == 0 {
		return nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return db.Wrap("store tenants of nodes", err)
	}
	for node, cmd := range known {
		slices.Sort(nodes[node])
		extra := slices.DeleteFunc(cmd.Val(), func(tenant string) bool {
			_, found := slices.BinarySearch(nodes[node], tenant)
			return found
		})
		if len(extra) == 0 {
			continue
		}
		if err := s.Redis.SRem(ctx, s.Key(db.SlotNodes, db.KeyTenantsOf, node), members(extra)...).Err(); err != nil {
			return db.Wrap("remove tenants of a node", err)
		}
	}
	return nil
}

// indexed reads a set of each of some tenants, or nodes.
func (s *Store) indexed(ctx context.Context, names []string, keyOf func(name string) string) ([][]string, error) {
	out := make([][]string, len(names))
	if len(names) == 0 {
		return out, nil
	}
	pipe := s.Redis.Pipeline()
	cmds := make([]*redis.StringSliceCmd, len(names))
	for i, name := range names {
		cmds[i] = pipe.SMembers(ctx, keyOf(name))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, db.Wrap("read index of nodes", err)
	}
	for i, cmd := range cmds {
		out[i] = cmd.Val()
	}
	return out, nil
}

// members are the members of a set, as arguments of a command.
func members(names []string) []any {
	out := make([]any, len(names))
	for i, name := range names {
		out[i] = name
	}
	return out
}
