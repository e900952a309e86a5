package client

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"slices"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxLanguage bounds the name of a language, in bytes.
const maxLanguage = 32

// wrongContext reports whether an agent cannot have said this of a context.
func wrongContext(c farm.CodeContext) bool {
	return c.Name == "" || len(c.Name) > agent.MaxContextBytes || c.Language == "" || len(c.Language) > maxLanguage ||
		!path.IsAbs(c.Cwd) || len(c.Cwd) > farm.MaxPathBytes
}

var errContexts = farm.Errorf(farm.CodeInternal, "the agent listed contexts that cannot be")

// Contexts lists the contexts in which code runs, the oldest first.
func (l Live) Contexts(ctx context.Context) ([]farm.CodeContext, error) {
	var list []farm.CodeContext
	if err := l.call(ctx, callTimeout, http.MethodGet, agent.ContextsPath, nil, nil, &list); err != nil {
		return nil, err
	}
	if len(list) > agent.MaxContexts || slices.ContainsFunc(list, wrongContext) {
		return nil, errContexts
	}
	return list, nil
}

func contextPath(name string) string { return agent.ContextsPath + "/" + url.PathEscape(name) }

// CreateContext makes a context, and returns it with its directory.
func (l Live) CreateContext(ctx context.Context, c farm.CodeContext) (farm.CodeContext, error) {
	var made farm.CodeContext
	if err := l.call(ctx, callTimeout, http.MethodPut, contextPath(c.Name), nil, c, &made); err != nil {
		return made, err
	}
	if wrongContext(made) {
		return made, errContexts
	}
	return made, nil
}

// RemoveContext ends a context and what runs in it.
func (l Live) RemoveContext(ctx context.Context, name, language string) error {
	return l.call(ctx, callTimeout, http.MethodDelete, contextPath(name), url.Values{"language": {language}}, nil, nil)
}
