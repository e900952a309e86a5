package toolset

import (
	"errors"
	"fmt"
)

// Validate returns an error for each missing part of a toolset: its names, Refuse, and a Run for each tool.
func (t *Toolset) Validate() error {
	var errs []error
	if t.Name == "" || t.Title == "" || t.About == "" || t.Instructions == "" {
		errs = append(errs, errors.New("a toolset needs Name, Title, About and Instructions"))
	}
	if t.Refuse == nil {
		errs = append(errs, errors.New("a toolset needs Refuse"))
	}
	if len(t.Tools) == 0 {
		errs = append(errs, errors.New("there are no tools"))
	}
	seen := map[string]bool{}
	for _, tool := range t.Tools {
		if tool.Name == "" || tool.Title == "" || tool.About == "" {
			errs = append(errs, fmt.Errorf("tool %q: Name, Title and About must be set", tool.Name))
		}
		if tool.Run == nil {
			errs = append(errs, fmt.Errorf("tool %q: Run must be set", tool.Name))
		}
		if seen[tool.Name] {
			errs = append(errs, fmt.Errorf("tool %q is listed twice", tool.Name))
		}
		seen[tool.Name] = true
	}
	if len(errs) > 0 {
		return fmt.Errorf("toolset %q: %w", t.Name, errors.Join(errs...))
	}
	return nil
}
