package images

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// InstallerVersion is the version of uv.
const InstallerVersion = "0.13.8"

// installerProject is the name of uv in the index.
const installerProject = "uv"

// maxWheel and maxProgram bound what is read: the wheel has about 25 MiB, the program in it about 60 MiB.
const (
	maxWheel   = 128 << 20
	maxProgram = 256 << 20
)

// wheel is a file of the index. Those for musl are linked statically.
type wheel struct{ file, sha256 string }

// wheels are the files by Go's name of the architecture, with the hashes that the index lists.
func wheels() map[string]wheel {
	return map[string]wheel{
		"amd64": {"uv-0.13.8-py3-none-musllinux_1_1_x86_64.whl", "29451c60f5e8b07403e0a175d5229efc36b0289b34143ff4aaa499a5dd52553a"},
		"arm64": {"uv-0.13.8-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl", "0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d"},
	}
}

// FetchWheel opens a file of the index.
type FetchWheel func(ctx context.Context, project, file, sha256 string) (io.ReadCloser, int64, error)

// Installer is uv, the installer that sandboxes use: one static program, extracted from its wheel in the Python index. Its version and the hashes of
// the wheels are pinned here, so a sandbox runs what was tested, whichever index it came from. uv was chosen because it installs the usual
// ten packages ten times as fast as pip and runs in any image. Installer fetches the installer for an architecture, given Go's or the kernel's name.
func Installer(ctx context.Context, fetch FetchWheel, arch string) ([]byte, error) {
	switch strings.ToLower(arch) {
	case "x86_64":
		arch = "amd64"
	case "aarch64":
		arch = "arm64"
	}
	w, ok := wheels()[arch]
	if !ok {
		return nil, fmt.Errorf("find uv: no build for linux/%s", arch)
	}
	r, _, err := fetch(ctx, installerProject, w.file, w.sha256)
	if err != nil {
		return nil, fmt.Errorf("fetch uv: %w", err)
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(io.LimitReader(r, maxWheel+1))
	if err != nil {
		return nil, fmt.Errorf("read uv's wheel: %w", err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != w.sha256 {
		return nil, fmt.Errorf("check uv's wheel: %s has the SHA-256 %x, want %s", w.file, sum, w.sha256)
	}
	return unpack(data)
}

// unpack extracts the program from a wheel.
func unpack(data []byte) ([]byte, error) {
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("open uv's wheel: %w", err)
	}
	for _, f := range archive.File {
		if dir, name := path.Split(f.Name); name != "uv" || !strings.HasSuffix(dir, ".data/scripts/") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, fmt.Errorf("open uv in its wheel: %w", err)
		}
		defer func() { _ = r.Close() }()
		if f.UncompressedSize64 > maxProgram {
			return nil, fmt.Errorf("unpack uv: it has more than %d bytes", maxProgram)
		}
		program := make([]byte, f.UncompressedSize64) // a buffer that grows would take several times that
		if _, err := io.ReadFull(r, program); err != nil {
			return nil, fmt.Errorf("unpack uv: %w", err)
		}
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // checks the sum of the content
			return nil, fmt.Errorf("unpack uv: %w", errors.Join(errors.New("its content is not as announced"), err))
		}
		return program, nil
	}
	return nil, fmt.Errorf("unpack uv: its wheel does not contain the program")
}
