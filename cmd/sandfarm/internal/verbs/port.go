package verbs

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxForwarded is how many connections port-forward carries at once; more wait.
const maxForwarded = 64

func (a *app) portForward() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "port-forward ID [LOCAL:]PORT…", Short: "Listen here and carry connections to ports of a sandbox",
		Long: `Listen on 127.0.0.1 and carry each connection to a port of a sandbox, until Ctrl-C. Any protocol over TCP works. LOCAL 0 takes a free port. A
connection that cannot be made is closed, and the reason is printed; the next one is tried anew.

In a browser open the printed name below localhost: a browser sends the cookies of 127.0.0.1 to all of its ports, and that of a dashboard
at 127.0.0.1 would be known to the code in the sandbox. A server that refuses that name, as Jupyter does, can be opened at 127.0.0.1 in a
private window.`,
		Example: `  sandfarm port-forward sbx_… 8888
  sandfarm port-forward sbx_… 8080:80 0:5432`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, -1, "the sandbox's ID or a PORT"), func(ctx context.Context, c *client.Client, args []string) error {
		box, err := c.Sandbox(ctx, args[0]) // rather now than at the first connection
		if err != nil {
			return err
		}
		if state := farm.SandboxState(box.State); !state.Accepts() {
			return farm.NoMoreWork(box.ID, state, box.Reason)
		}
		ctx, done := context.WithCancel(ctx)
		var all sync.WaitGroup
		defer all.Wait()
		defer done()
		slots := make(chan struct{}, maxForwarded)
		for _, arg := range args[1:] {
			local, port, err := forwardOf(arg)
			if err != nil {
				return err
			}
			var listen net.ListenConfig
			l, err := listen.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(local)))
			if err != nil {
				return fmt.Errorf("listen for port %d: %w", port, err)
			}
			stop := context.AfterFunc(ctx, func() { _ = l.Close() })
			defer stop()
			_, at, _ := net.SplitHostPort(l.Addr().String())
			_, _ = fmt.Fprintf(a.Err, "%s goes to port %d of %s; in a browser: http://%s.localhost:%s\n", l.Addr(), port, args[0], strings.ReplaceAll(box.ID, "_", "-"), at)
			all.Go(func() { a.forward(ctx, c, l, args[0], port, slots, &all) })
		}
		<-ctx.Done()
		return ctx.Err()
	})
}

// forward carries the connections to a listener until ctx is done.
func (a *app) forward(ctx context.Context, c *client.Client, l net.Listener, sandbox string, port int, slots chan struct{}, all *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // ctx is done
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			_ = conn.Close()
			return
		}
		all.Go(func() {
			defer func() { <-slots }()
			if err := c.Forward(ctx, sandbox, port, conn); err != nil && ctx.Err() == nil {
				_, _ = fmt.Fprintf(a.Err, "port %d: %s\n", port, cell(err.Error()))
			}
		})
	}
}

// forwardOf reads LOCAL:PORT, or PORT for the same on both sides.
func forwardOf(text string) (local, port int, err error) {
	first, second, both := strings.Cut(text, ":")
	if !both {
		second = first
	}
	l, bad := strconv.ParseUint(first, 10, 16)
	p, worse := strconv.ParseUint(second, 10, 16)
	if bad != nil || worse != nil || p == 0 {
		return 0, 0, usagef("%q is not PORT or LOCAL:PORT: ports are numbers from 1 to 65535", text)
	}
	return int(l), int(p), nil //nolint:gosec // they have 16 bits
}

func (a *app) sandboxPorts() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "ports ID", Short: "List the ports on which programs of a sandbox listen",
		Example:           `  sandfarm sandbox ports sbx_…`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, 1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		list, err := c.Ports(ctx, args[0])
		if err != nil {
			return err
		}
		if a.json {
			return a.print(list)
		}
		rows := make([][]string, len(list))
		for i, p := range list {
			pid := "-"
			if p.PID != nil {
				pid = strconv.Itoa(*p.PID)
			}
			rows[i] = []string{strconv.Itoa(p.Port), p.Address, pid, p.Command}
		}
		return table(a.Out, []string{"PORT", "ADDRESS", "PID", "COMMAND"}, rows)
	})
}

func (a *app) sandboxPortLink() *cobra.Command {
	var expires time.Duration
	var pathStyle bool
	c := a.verb(&cobra.Command{
		Use: "port-link ID PORT", Short: "Make a link to a port of a sandbox that needs no key",
		Example: `  sandfarm sandbox port-link sbx_… 8888 --expires 24h`, ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, 2, "the sandbox's ID or the PORT"), func(ctx context.Context, c *client.Client, args []string) error {
		_, port, err := forwardOf(args[1])
		if err != nil || strings.Contains(args[1], ":") {
			return usagef("%q is not a port: it is a number from 1 to 65535", args[1])
		}
		seconds := int(expires / time.Second)
		link, err := c.LinkPort(ctx, args[0], wire.PortLinkRequest{Port: port, ExpiresSeconds: &seconds, PathStyle: pathStyle})
		if err != nil {
			return err
		}
		if a.json {
			return a.print(link)
		}
		_, err = fmt.Fprintln(a.Out, link.URL)
		return err
	})
	c.Flags().DurationVar(&expires, "expires", time.Hour, "how long the link works, up to 168h")
	c.Flags().BoolVar(&pathStyle, "path-style", false, "make the link a path of the farm's own address, for programs that do not resolve names below localhost (Python, Node)")
	return c
}
