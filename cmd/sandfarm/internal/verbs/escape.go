package verbs

// escapes finds the escape sequences that a person types at the start of a line, as ssh has them. The zero value is at the start of a line.
type escapes struct {
	middle bool // of a line
	tilde  bool // it began with a tilde, which is held back
}

const escapeHelp = "\r\n~.  leave: the process runs on\r\n~?  this help\r\n~~  a tilde\r\n(Each at the start of a line.)\r\n"

// filter returns the keys for the process, whether the help was asked for, and whether to leave.
func (e *escapes) filter(keys []byte) (out []byte, help, leave bool) {
	for _, key := range keys {
		switch {
		case e.tilde:
			e.tilde, e.middle = false, true
			switch key {
			case '.':
				return out, help, true
			case '?':
				help, e.middle = true, false
				continue
			case '~':
			default:
				out = append(out, '~')
			}
		case key == '~' && !e.middle:
			e.tilde = true
			continue
		}
		out = append(out, key)
		e.middle = key != '\r' && key != '\n'
	}
	return out, help, false
}
