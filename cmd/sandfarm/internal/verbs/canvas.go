package verbs

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// canvas is the output of a job on a terminal. It knows where on the screen each displayed value is, and draws it again when it changes.
// Values that have scrolled away are shown once more below.
type canvas struct {
	size   func() (width, height int)
	out    io.Writer
	errs   io.Writer // nil: stderr is not on this terminal
	parts  []drawn   // what is on the screen, from the first value on
	at     position  // of the cursor
	origin position  // where the output that can be cleared begins
	kept   int       // bytes of parts
}

// position is a place on a terminal. Rows count from the beginning of the output.
type position struct{ row, column int }

// drawn is a displayed value, or text.
type drawn struct {
	value int // number of the value; noValue: text
	text  string
	to    io.Writer
	from  position
}

const (
	noValue = -1
	// maxKept bounds the bytes that are drawn again after a value that changes.
	maxKept = 256 << 10
)

// canvas is that of the terminal that stdout is; nil if it is none. restore must be called in the end.
func (a *app) canvas() (c *canvas, restore func()) {
	out, ok := a.Out.(*os.File)
	if !ok || !term.IsTerminal(int(out.Fd())) || a.Getenv("TERM") == "dumb" {
		return nil, func() {}
	}
	restore, ok = controlSequences(out)
	if !ok {
		return nil, func() {}
	}
	c = &canvas{out: out, size: func() (int, int) {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}}
	if errs, ok := a.Err.(*os.File); ok && term.IsTerminal(int(errs.Fd())) {
		c.errs = errs
	}
	return c, restore
}

// write adds text to an output.
func (c *canvas) write(to io.Writer, text string) error {
	if to != c.out && to != c.errs { // it is not on this terminal
		_, err := io.WriteString(to, text)
		return err
	}
	return c.draw(drawn{value: noValue, text: text, to: to})
}

// show draws a displayed value: in its place, if it is on the screen.
func (c *canvas) show(value int, text string) error {
	next := drawn{value: value, text: text, to: c.out}
	i := slices.IndexFunc(c.parts, func(p drawn) bool { return p.value == value })
	if i < 0 || !c.visible(c.parts[i].from) {
		return c.draw(next)
	}
	after := slices.Clone(c.parts[i+1:])
	if err := c.erase(c.parts[i].from); err != nil {
		return err
	}
	c.forget(i)
	for _, p := range append([]drawn{next}, after...) {
		if err := c.draw(p); err != nil {
			return err
		}
	}
	return nil
}

// clear erases the output, as far as it is on the screen.
func (c *canvas) clear() error {
	_, height := c.size()
	from := c.origin
	if top := c.at.row - height + 1; from.row < top {
		from = position{row: top}
	}
	err := c.erase(from)
	c.forget(0)
	c.origin = c.at
	return err
}

// visible reports whether a place has not scrolled away.
func (c *canvas) visible(p position) bool {
	_, height := c.size()
	return c.at.row-p.row < height
}

// erase erases everything from a place on, and moves the cursor there.
func (c *canvas) erase(from position) error {
	move := "\r"
	if up := c.at.row - from.row; up > 0 {
		move += fmt.Sprintf("\x1b[%dA", up)
	}
	if from.column > 0 {
		move += fmt.Sprintf("\x1b[%dC", from.column)
	}
	c.at = from
	_, err := io.WriteString(c.out, move+clearBelow)
	return err
}

// forget drops the parts from number i on.
func (c *canvas) forget(i int) {
	for _, p := range c.parts[i:] {
		c.kept -= len(p.text)
	}
	c.parts = c.parts[:i]
}

// draw adds a part at the cursor.
func (c *canvas) draw(p drawn) error {
	if width, _ := c.size(); c.at.column >= width { // behind a full line the cursor waits for the next character
		p.from = position{row: c.at.row + 1}
	} else {
		p.from = c.at
	}
	known := c.advance(p.text)
	last := len(c.parts) - 1
	switch {
	case !known || c.kept+len(p.text) > maxKept:
		c.forget(0)
	case p.value == noValue && last < 0: // no value before it can change
	case p.value == noValue && c.parts[last].value == noValue && c.parts[last].to == p.to:
		c.parts[last].text += p.text
		c.kept += len(p.text)
	default:
		c.parts = append(c.parts, p)
		c.kept += len(p.text)
	}
	gone := 0 // parts that have scrolled away
	for gone < len(c.parts) && !c.visible(c.parts[gone].from) {
		c.kept -= len(c.parts[gone].text)
		gone++
	}
	c.parts = slices.Delete(c.parts, 0, gone)
	_, err := io.WriteString(p.to, p.text)
	return err
}

// advance moves the cursor behind a text. It reports false if the text moves the cursor itself; the output can be cleared from there on only.
func (c *canvas) advance(text string) bool {
	width, _ := c.size()
	for len(text) > 0 {
		if text[0] == '\x1b' {
			n := styleLength(text)
			if n == 0 {
				c.at.column = 0
				c.origin = c.at
				return false
			}
			text = text[n:]
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		c.put(r, width)
	}
	return true
}

// put moves the cursor as a character does.
func (c *canvas) put(r rune, width int) {
	switch {
	case r == '\n':
		c.at = position{row: c.at.row + 1}
	case r == '\r':
		c.at.column = 0
	case r == '\b':
		c.at.column = max(c.at.column-1, 0)
	case r == '\t':
		c.at.column = min((c.at.column/8+1)*8, width-1)
	default:
		columns := columnsOf(r)
		if c.at.column+columns > width {
			c.at = position{row: c.at.row + 1}
		}
		c.at.column += columns
	}
}

// styleLength is the length of the control sequence that a text begins with, if that only styles or erases: 0 otherwise.
func styleLength(text string) int {
	if !strings.HasPrefix(text, "\x1b[") {
		return 0
	}
	n := strings.IndexFunc(text[2:], func(r rune) bool { return r >= '@' && r <= '~' })
	if n < 0 || text[2+n] != 'm' && text[2+n] != 'K' {
		return 0
	}
	return n + 3
}

// wide are the characters that take two columns.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{{0x1100, 0x115f, 1}, {0x2e80, 0xa4cf, 1}, {0xac00, 0xd7a3, 1}, {0xf900, 0xfaff, 1}, {0xfe30, 0xfe6f, 1}, {0xff00, 0xff60, 1}, {0xffe0, 0xffe6, 1}},
	R32: []unicode.Range32{{0x1f300, 0x1faff, 1}, {0x20000, 0x3fffd, 1}},
}

func columnsOf(r rune) int {
	switch {
	case unicode.IsControl(r), unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case unicode.Is(wide, r):
		return 2
	default:
		return 1
	}
}
