package execution

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// clear takes the order of the code to clear its output: now, or when there is more output. The result then has only the values that came
// later, as in a saved notebook. Text stays in the result: stdout and stderr are a log. The events have everything, with an event at this
// place.
func (c *collector) clear(wait bool) {
	c.flushCarry()
	if c.clearing = true; !wait {
		c.clearNow()
	}
	if c.canSend(0) {
		c.emit(farm.Event{Name: farm.EventClear, Wait: wait})
	}
}

// clearNow removes the values from the result, if there is an order to do so.
func (c *collector) clearNow() {
	if !c.clearing {
		return
	}
	c.clearing, c.cleared = false, c.shown
	for _, entry := range c.rich {
		c.release(entry)
	}
	c.rich = nil
}

// displayID checks the name of a displayed value. The agent leaves out longer ones itself.
func (c *collector) displayID(id string) string {
	if len(id) > agent.MaxDisplayID {
		return ""
	}
	return strings.ToValidUTF8(id, "\uFFFD")
}

// metadata checks the metadata of a displayed value: a JSON object that every client can read.
func (c *collector) metadata(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) > maxRichMetadata {
		c.note("The metadata of a displayed value was left out: it has more than %d bytes.", maxRichMetadata)
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil || depth(object) > maxMetadataDepth {
		c.note("The metadata of a displayed value was left out: it is no JSON object of at most %d levels.", maxMetadataDepth)
		return nil
	}
	if len(object) == 0 {
		return nil
	}
	var text bytes.Buffer // encoded again, it is UTF-8, and each key is there once
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(object); err != nil {
		panic(fmt.Sprintf("encode what was decoded: %v", err))
	}
	return bytes.TrimRight(text.Bytes(), "\n")
}

// depth is how many levels of objects and arrays a value has.
func depth(value any) int {
	deepest := 0
	switch v := value.(type) {
	case map[string]any:
		for _, item := range v {
			deepest = max(deepest, depth(item))
		}
	case []any:
		for _, item := range v {
			deepest = max(deepest, depth(item))
		}
	default:
		return 0
	}
	return deepest + 1
}
