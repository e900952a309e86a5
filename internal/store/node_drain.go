package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// SetDrain drains a node. A drain that the node has keeps the time since when it is drained. It ends by EndDrain, or with the node.
func (s *Store) SetDrain(ctx context.Context, d farm.Drain) (farm.Drain, error) {
	before, err := s.Drain(ctx, d.Node)
	switch {
	case err == nil:
		d.Since = before.Since
	case farm.CodeOf(err) != farm.CodeNotFound:
		return farm.Drain{}, err
	}
	doc, err := encode("drain", d)
	if err != nil {
		return farm.Drain{}, err
	}
	return d, wrap("store drain", s.rdb.HSet(ctx, s.Index(SlotNodes, IndexDrains), d.Node, doc).Err())
}

// Drain reads the drain of a node; CodeNotFound if it has none.
func (s *Store) Drain(ctx context.Context, node string) (farm.Drain, error) {
	text, err := s.rdb.HGet(ctx, s.Index(SlotNodes, IndexDrains), node).Result()
	if errors.Is(err, redis.Nil) {
		return farm.Drain{}, notDrained(node)
	}
	if err != nil {
		return farm.Drain{}, wrap("read drain", err)
	}
	return decodeDrain(node, text)
}

// Drains lists the drains of all nodes, by node.
func (s *Store) Drains(ctx context.Context) ([]farm.Drain, error) {
	all, err := s.rdb.HGetAll(ctx, s.Index(SlotNodes, IndexDrains)).Result()
	if err != nil {
		return nil, wrap("list drains", err)
	}
	out := make([]farm.Drain, 0, len(all))
	for node, text := range all {
		d, err := decodeDrain(node, text)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b farm.Drain) int { return cmp.Compare(a.Node, b.Node) })
	return out, nil
}

// EndDrain ends the drain of a node; CodeNotFound if it has none.
func (s *Store) EndDrain(ctx context.Context, node string) error {
	n, err := s.rdb.HDel(ctx, s.Index(SlotNodes, IndexDrains), node).Result()
	if err == nil && n == 0 {
		return notDrained(node)
	}
	return wrap("end drain", err)
}

func notDrained(node string) error {
	return farm.Errorf(farm.CodeNotFound, "Node %s is not drained.", farm.Shorten(node))
}

func decodeDrain(node, text string) (farm.Drain, error) {
	var d farm.Drain
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return d, fmt.Errorf("read drain of node %s: %w", node, err)
	}
	return d, nil
}
