// Verifies a log in the layout of C2SP tlog-tiles with Go's own code for transparency logs (golang.org/x/mod/sumdb), as an
// auditor could who has never seen Ledge: VERIFIER-KEY FOLDER [EARLIER-CHECKPOINT [PROOF...]], where the first is a file.
// Says `ok` in the end, or what is wrong.
package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const height = 8

type head struct {
	origin string
	size   int64
	root   tlog.Hash
}

// hashes are all that the tree stores, by their index.
type hashes []tlog.Hash

func (h hashes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	var read []tlog.Hash
	for _, index := range indexes {
		if index >= int64(len(h)) {
			return nil, fmt.Errorf("no hash %d", index)
		}
		read = append(read, h[index])
	}
	return read, nil
}

func main() {
	if err := verify(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

func verify(keyFile, folder string, rest []string) error {
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return err
	}
	verifier, err := note.NewVerifier(strings.TrimSpace(string(key)))
	if err != nil {
		return err
	}
	signed, err := os.ReadFile(filepath.Join(folder, "checkpoint"))
	if err != nil {
		return err
	}
	current, err := open(signed, verifier)
	if err != nil {
		return err
	}
	stored, err := readEntries(folder, current.size)
	if err != nil {
		return err
	}
	root, err := tlog.TreeHash(current.size, stored)
	if err != nil {
		return err
	}
	if root != current.root {
		return fmt.Errorf("the entries have the root %v, and %v is signed", root, current.root)
	}
	for _, tile := range tlog.NewTiles(height, 0, current.size) {
		// Of a tile that is not whole, older versions of this code name every width on the way.
		if tile.W < 1<<height && tile.N<<height+int64(tile.W) != current.size>>(height*uint(tile.L)) {
			continue
		}
		computed, err := tlog.ReadTileData(tile, stored)
		if err != nil {
			return err
		}
		// Go's own log has the height of its tiles in their paths.
		path := strings.Replace(tile.Path(), "tile/8/", "tile/", 1)
		published, err := os.ReadFile(filepath.Join(folder, path))
		if err != nil {
			return err
		}
		if !bytes.Equal(computed, published) {
			return fmt.Errorf("%s is not of these entries", path)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	if err := contains(current, stored, rest[0], verifier); err != nil {
		return err
	}
	for _, proof := range rest[1:] {
		if err := checkProof(proof, verifier); err != nil {
			return fmt.Errorf("%s: %w", proof, err)
		}
	}
	return nil
}

func open(signed []byte, verifier note.Verifier) (head, error) {
	opened, err := note.Open(signed, note.VerifierList(verifier))
	if err != nil {
		return head{}, err
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) < 4 || !strings.HasPrefix(lines[0], verifier.Name()+"/") {
		return head{}, fmt.Errorf("no checkpoint of %s: %q", verifier.Name(), opened.Text)
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil {
		return head{}, err
	}
	root, err := tlog.ParseHash(lines[2])
	return head{lines[0], size, root}, err
}

// readEntries hashes the records of all entry bundles.
func readEntries(folder string, size int64) (hashes, error) {
	var stored hashes
	for first := int64(0); first < size; first += 1 << height {
		width := size - first
		if width > 1<<height {
			width = 1 << height
		}
		tile := tlog.Tile{H: height, L: -1, N: first >> height, W: int(width)}
		path := strings.Replace(tile.Path(), "tile/8/data/", "tile/entries/", 1)
		bundle, err := os.ReadFile(filepath.Join(folder, path))
		if err != nil {
			return nil, err
		}
		for index := first; index < first+width; index++ {
			if len(bundle) < 2 || len(bundle) < 2+int(binary.BigEndian.Uint16(bundle)) {
				return nil, fmt.Errorf("%s ends within record %d", path, index)
			}
			end := 2 + int(binary.BigEndian.Uint16(bundle))
			record := bundle[2:end]
			bundle = bundle[end:]
			if err := isRecord(record, index); err != nil {
				return nil, err
			}
			more, err := tlog.StoredHashes(index, record, stored)
			if err != nil {
				return nil, err
			}
			stored = append(stored, more...)
		}
		if len(bundle) > 0 {
			return nil, fmt.Errorf("%s has more than its records", path)
		}
	}
	return stored, nil
}

func isRecord(line []byte, index int64) error {
	var record struct {
		V, Seq int64
		Event  struct{ Action string }
	}
	if err := json.Unmarshal(line, &record); err != nil {
		return fmt.Errorf("record %d: %w", index, err)
	}
	if record.V != 1 || record.Seq != index || record.Event.Action == "" {
		return fmt.Errorf("record %d is another one: %s", index, line)
	}
	return nil
}

// contains proves that the log goes on from an earlier head, and checks that proof.
func contains(current head, stored hashes, file string, verifier note.Verifier) error {
	signed, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	earlier, err := open(signed, verifier)
	if err != nil {
		return err
	}
	if earlier.origin != current.origin || earlier.size > current.size {
		return fmt.Errorf("%v is no earlier head of %v", earlier, current)
	}
	proof, err := tlog.ProveTree(current.size, earlier.size, stored)
	if err != nil {
		return err
	}
	return tlog.CheckTree(proof, current.size, current.root, earlier.size, earlier.root)
}

// checkProof reads a proof of inclusion (C2SP tlog-proof) and needs nothing else.
func checkProof(file string, verifier note.Verifier) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	proof, signed, found := strings.Cut(string(content), "\n\n")
	lines := strings.Split(proof, "\n")
	if !found || len(lines) < 3 || lines[0] != "c2sp.org/tlog-proof@v1" {
		return fmt.Errorf("no proof")
	}
	record, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(lines[1], "extra "))
	if err != nil {
		return err
	}
	index, err := strconv.ParseInt(strings.TrimPrefix(lines[2], "index "), 10, 64)
	if err != nil {
		return err
	}
	var beside tlog.RecordProof
	for _, line := range lines[3:] {
		hash, err := tlog.ParseHash(line)
		if err != nil {
			return err
		}
		beside = append(beside, hash)
	}
	current, err := open([]byte(signed), verifier)
	if err != nil {
		return err
	}
	if err := isRecord(record, index); err != nil {
		return err
	}
	return tlog.CheckRecord(beside, current.size, current.root, index, tlog.RecordHash(record))
}
