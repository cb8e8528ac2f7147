//! The form of a backup of a box: a tar file of regular files, of which only one byte sequence is right.
//!
//! | entry | content |
//! | --- | --- |
//! | `ledge-backup` | the number of this form; first |
//! | `state/…`, `config/…`, `features/…`, … | the files |
//! | `manifest.json` | the length and the SHA-256 of each of them, and facts of the box |
//! | `manifest.sha256` | the SHA-256 of the manifest; last |
//!
//! Every header, each padding and the end have one form, so any changed byte and any other length is noticed. A name longer
//! than 100 bytes has an entry of GNU tar before it. Other kinds of entries, such as links, do not exist.

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read, Write};

use anyhow::{Context as _, bail, ensure};
use ledge_updates::sha256::{Sha256Stream, sha256_hex};
use serde::{Deserialize, Serialize};
use tar::{EntryType, Header};

/// The number of this form. It is raised when an earlier version could no longer restore a backup rightly.
pub const FORMAT_VERSION: u32 = 1;

/// The size of a block of tar, in bytes.
const BLOCK_BYTES: usize = 512;

/// The longest name in a header, in bytes.
const HEADER_NAME_BYTES: usize = 100;

/// The longest path of an entry, and the longest name in it, in bytes.
const PATH_BYTES_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 255;

/// The longest path of an entry, in names.
const DEPTH_MAX: usize = 32;

/// The largest file of an entry, in bytes.
const ENTRY_BYTES_MAX: u64 = 1 << 40;

/// The most entries.
const ENTRIES_MAX: usize = 500_000;

/// The largest manifest, in bytes.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// The largest of the other entries that are read into memory, in bytes.
const SMALL_BYTES_MAX: u64 = 1 << 10;

const FORMAT_ENTRY: &str = "ledge-backup";
const MANIFEST_ENTRY: &str = "manifest.json";
const SUM_ENTRY: &str = "manifest.sha256";
const LONG_NAME_ENTRY: &[u8] = b"././@LongLink";

/// The mode of entries that are no file of the box.
const OWN_MODE: u32 = 0o600;

/// The content of a backup file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArchiveKind {
    /// Everything but private keys.
    Box,
    /// The private keys.
    Keys,
}

/// The description of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupManifest {
    pub format: u32,
    pub kind: ArchiveKind,
    /// The same random text in the two files of one backup.
    pub pair: String,
    /// The version of Ledge that wrote it.
    pub ledge: String,
    /// The name of the box; empty before its first start.
    pub device: String,
    /// RFC 3339.
    pub created: String,
    /// The formats of the stores, as in the file `formats` of the state folder.
    pub formats: String,
    /// The verifier key of the audit log, if there is one.
    pub audit_key: Option<String>,
    /// The platform that the box is a member of.
    pub platform: Option<String>,
    /// True if the feature store is in it as a backup of its own, in pieces.
    pub has_feature_backup: bool,
    /// Files of the box that are in neither file, with the reason.
    pub left_out: Vec<String>,
    pub entries: Vec<ArchivedFile>,
}

/// An entry of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchivedFile {
    pub path: String,
    pub length: u64,
    pub sha256: String,
    /// The permissions.
    pub mode: u32,
    /// True if the user of the service owns it, and not root.
    pub of_service: bool,
}

/// The facts of a file that its content does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    pub mode: u32,
    pub of_service: bool,
    /// The time of its last change, in seconds since the Unix epoch.
    pub modified_s: u64,
}

/// Writes a backup.
pub struct ArchiveWriter<W> {
    output: W,
    entries: Vec<ArchivedFile>,
    created_s: u64,
}

impl<W: Write> ArchiveWriter<W> {
    /// Begins a backup.
    pub fn new(output: W, created_s: u64) -> io::Result<Self> {
        let mut writer = Self { output, entries: Vec::new(), created_s };
        writer.write_own(FORMAT_ENTRY, format!("{FORMAT_VERSION}\n").as_bytes())?;
        Ok(writer)
    }

    /// Adds a file of `length` bytes.
    pub fn add(&mut self, path: &str, facts: FileFacts, length: u64, content: impl Read) -> anyhow::Result<()> {
        check_path(path)?;
        ensure!(self.entries.len() < ENTRIES_MAX, "a backup has at most {ENTRIES_MAX} files");
        ensure!(length <= ENTRY_BYTES_MAX, "{path} is larger than {} TiB", ENTRY_BYTES_MAX >> 40);
        let FileFacts { mode, of_service, modified_s } = facts;
        let mode = mode & 0o777;
        let sha256 = self.write_entry(path, mode, modified_s, length, content)?;
        self.entries.push(ArchivedFile { path: path.to_owned(), length, sha256, mode, of_service });
        Ok(())
    }

    /// Ends the backup with a manifest, of which this fills in the entries. Returns the output.
    pub fn finish(mut self, mut manifest: BackupManifest) -> anyhow::Result<W> {
        manifest.entries = std::mem::take(&mut self.entries);
        let text = serde_json::to_vec(&manifest)?;
        ensure!(text.len() as u64 <= MANIFEST_BYTES_MAX, "the manifest is too large");
        self.write_own(MANIFEST_ENTRY, &text)?;
        self.write_own(SUM_ENTRY, sum_line(&text).as_bytes())?;
        self.output.write_all(&[0; 2 * BLOCK_BYTES])?;
        Ok(self.output)
    }

    fn write_own(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let created_s = self.created_s;
        self.write_entry(name, OWN_MODE, created_s, content.len() as u64, content).map(drop)
    }

    fn write_entry(
        &mut self,
        path: &str,
        mode: u32,
        modified_s: u64,
        length: u64,
        content: impl Read,
    ) -> io::Result<String> {
        let name = path.as_bytes();
        if name.len() > HEADER_NAME_BYTES {
            let long = [name, b"\0"].concat();
            let head = header(EntryType::GNULongName, LONG_NAME_ENTRY, long.len() as u64, 0, 0);
            self.output.write_all(head.as_bytes())?;
            self.output.write_all(&long)?;
            self.pad(long.len() as u64)?;
        }
        self.output.write_all(header(EntryType::Regular, name, length, mode, modified_s).as_bytes())?;
        let mut body = EntryBody { input: content, left: length, sum: Sha256Stream::default() };
        io::copy(&mut body, &mut self.output)?;
        self.pad(length)?;
        Ok(body.sum.finish_hex())
    }

    fn pad(&mut self, length: u64) -> io::Result<()> {
        io::copy(&mut io::repeat(0).take(padding(length)), &mut self.output).map(drop)
    }
}

/// The header of an entry. There is no other of the same meaning.
fn header(kind: EntryType, name: &[u8], length: u64, mode: u32, modified_s: u64) -> Header {
    let mut header = Header::new_gnu();
    for (to, from) in header.as_old_mut().name.iter_mut().zip(name) {
        *to = *from;
    }
    header.set_entry_type(kind);
    header.set_size(length);
    header.set_mode(mode);
    header.set_mtime(modified_s);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    header
}

fn padding(length: u64) -> u64 {
    (BLOCK_BYTES as u64 - length % BLOCK_BYTES as u64) % BLOCK_BYTES as u64
}

/// The line of `sha256sum` for the manifest.
fn sum_line(manifest: &[u8]) -> String {
    format!("{}  {MANIFEST_ENTRY}\n", sha256_hex(manifest))
}

/// The content of an entry while it is read; an error where it is shorter than its header says.
struct EntryBody<R> {
    input: R,
    left: u64,
    sum: Sha256Stream,
}

impl<R: Read> Read for EntryBody<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let buffer = buffer.get_mut(..wanted).unwrap_or_default();
        if buffer.is_empty() {
            return Ok(0);
        }
        let count = self.input.read(buffer)?;
        if count == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "it is shorter than its length says"));
        }
        self.sum.update(buffer.get(..count).unwrap_or_default());
        self.left -= count as u64;
        Ok(count)
    }
}

/// An entry, before its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryHead {
    pub path: String,
    pub length: u64,
    pub mode: u32,
    pub modified_s: u64,
}

/// Reads a whole backup, and hands each file to `take`. The backup is right only when this returns `Ok`: until then `take`
/// must not put a file into effect. A path is relative, without `..`, and no file is the folder of another.
pub fn read_archive(
    mut input: impl Read,
    mut take: impl FnMut(&EntryHead, &mut dyn Read) -> anyhow::Result<()>,
) -> anyhow::Result<BackupManifest> {
    let begin = next_entry(&mut input).ok().flatten().filter(|entry| entry.path == FORMAT_ENTRY);
    let Some(begin) = begin else { bail!("it does not begin as a backup of `ledge backup` does") };
    let format = small(&mut input, &begin, SMALL_BYTES_MAX)?;
    let number = std::str::from_utf8(&format).ok().and_then(|text| text.trim_end().parse::<u32>().ok());
    match number {
        Some(FORMAT_VERSION) if format == format!("{FORMAT_VERSION}\n").as_bytes() => {}
        Some(later) if later > FORMAT_VERSION => {
            bail!("a later version of Ledge wrote it, in form {later}: install that version, then restore")
        }
        _ => bail!("it is damaged: the number of its form cannot be read"),
    }

    let (mut found, mut files, mut folders) = (Vec::new(), HashSet::new(), HashSet::new());
    let (manifest, text, written) = loop {
        let entry = next_entry(&mut input)?.context("it is damaged: it has no manifest")?;
        if entry.path == MANIFEST_ENTRY {
            let text = small(&mut input, &entry, MANIFEST_BYTES_MAX)?;
            let manifest: BackupManifest =
                serde_json::from_slice(&text).context("it is damaged: its manifest cannot be read")?;
            break (manifest, text, entry.modified_s);
        }
        ensure!(found.len() < ENTRIES_MAX, "it has more than {ENTRIES_MAX} files");
        check_path(&entry.path)?;
        for (at, _) in entry.path.match_indices('/') {
            let folder = entry.path.get(..at).unwrap_or_default();
            ensure!(!files.contains(folder), "{folder:?} is a file and a folder in it");
            if !folders.contains(folder) {
                folders.insert(folder.to_owned());
            }
        }
        ensure!(!folders.contains(&entry.path), "{:?} is a file and a folder in it", entry.path);
        ensure!(files.insert(entry.path.clone()), "it has {:?} twice", entry.path);

        let mut body = EntryBody { input: &mut input, left: entry.length, sum: Sha256Stream::default() };
        take(&entry, &mut body)?;
        io::copy(&mut body, &mut io::sink()).map_err(cut)?;
        let sum = body.sum.finish_hex();
        skip_padding(&mut input, entry.length)?;
        found.push((entry, sum));
    };

    ensure!(
        manifest.format == FORMAT_VERSION
            && written == begin.modified_s
            && serde_json::to_vec(&manifest)? == text
            && manifest.entries.len() == found.len(),
        "it is damaged: its files are not those of its manifest"
    );
    for (listed, (entry, sum)) in manifest.entries.iter().zip(&found) {
        ensure!(
            listed.path == entry.path
                && listed.length == entry.length
                && listed.mode == entry.mode
                && listed.sha256 == *sum,
            "it is damaged: {:?} differs from the manifest",
            entry.path
        );
    }
    let last = next_entry(&mut input)?.filter(|entry| entry.path == SUM_ENTRY && entry.modified_s == written);
    let sum = last.map(|last| small(&mut input, &last, SMALL_BYTES_MAX)).transpose()?;
    ensure!(sum.as_deref() == Some(sum_line(&text).as_bytes()), "it is damaged: its manifest was changed");
    ensure!(next_entry(&mut input)?.is_none(), "it is damaged: it goes on after its manifest");
    let mut more = [0];
    ensure!(input.read(&mut more)? == 0, "it is damaged: it goes on after its end");
    Ok(manifest)
}

/// Reads an entry into memory.
fn small(input: &mut impl Read, entry: &EntryHead, largest: u64) -> anyhow::Result<Vec<u8>> {
    ensure!(entry.length <= largest && entry.mode == OWN_MODE, "it is damaged: {:?} is malformed", entry.path);
    let mut content = Vec::new();
    let body = EntryBody { input: &mut *input, left: entry.length, sum: Sha256Stream::default() };
    body.take(largest).read_to_end(&mut content).map_err(cut)?;
    skip_padding(input, entry.length)?;
    Ok(content)
}

/// Reads to the content of the next entry; `None` at the end.
fn next_entry(input: &mut impl Read) -> anyhow::Result<Option<EntryHead>> {
    let mut block = read_block(input)?;
    if block == [0; BLOCK_BYTES] {
        ensure!(read_block(input)? == [0; BLOCK_BYTES], "it is damaged: its end is malformed");
        return Ok(None);
    }
    let mut long = None;
    if Header::from_byte_slice(&block).entry_type() == EntryType::GNULongName {
        let length = Header::from_byte_slice(&block).entry_size().unwrap_or(u64::MAX);
        let fits = length > HEADER_NAME_BYTES as u64 + 1 && length <= PATH_BYTES_MAX as u64 + 1;
        let is_right = fits && *header(EntryType::GNULongName, LONG_NAME_ENTRY, length, 0, 0).as_bytes() == block;
        ensure!(is_right, "it is damaged: the header of a long name is malformed");
        let mut name = Vec::new();
        let count = input.by_ref().take(length).read_to_end(&mut name).map_err(cut)?;
        ensure!(count as u64 == length, "it is cut off");
        skip_padding(input, length)?;
        ensure!(name.pop() == Some(0), "it is damaged: a long name is malformed");
        long = Some(name);
        block = read_block(input)?;
    }

    let parsed = Header::from_byte_slice(&block);
    let kind = parsed.entry_type();
    ensure!(kind == EntryType::Regular, "it has an entry of another kind than a file: {kind:?}");
    let name = match long {
        Some(name) => name,
        None => parsed.as_old().name.iter().copied().take_while(|byte| *byte != 0).collect(),
    };
    let facts = (parsed.entry_size(), parsed.mode(), parsed.mtime());
    let (Ok(length), Ok(mode), Ok(modified_s)) = facts else { bail!("it is damaged: a header is malformed") };
    ensure!(*header(kind, &name, length, mode, modified_s).as_bytes() == block, "it is damaged: a header is malformed");
    ensure!(mode <= 0o777, "it has an entry with the mode {mode:o}");
    let path = String::from_utf8(name).ok().context("it has a name that is no UTF-8")?;
    ensure!(length <= ENTRY_BYTES_MAX, "{path:?} in it is larger than {} TiB", ENTRY_BYTES_MAX >> 40);
    Ok(Some(EntryHead { path, length, mode, modified_s }))
}

fn read_block(input: &mut impl Read) -> anyhow::Result<[u8; BLOCK_BYTES]> {
    let mut block = [0; BLOCK_BYTES];
    input.read_exact(&mut block).map_err(cut)?;
    Ok(block)
}

fn skip_padding(input: &mut impl Read, length: u64) -> anyhow::Result<()> {
    let mut block = [0; BLOCK_BYTES];
    let padding = usize::try_from(padding(length)).ok().and_then(|length| block.get_mut(..length));
    let padding = padding.unwrap_or_default();
    input.read_exact(padding).map_err(cut)?;
    ensure!(padding.iter().all(|byte| *byte == 0), "it is damaged: the space after a file is not empty");
    Ok(())
}

/// The error of a read, which says so of a file that ends too early.
fn cut(error: io::Error) -> anyhow::Error {
    if error.kind() == ErrorKind::UnexpectedEof { anyhow::anyhow!("it is cut off") } else { error.into() }
}

/// Refuses a path that could leave the folder into which it is restored.
fn check_path(path: &str) -> anyhow::Result<()> {
    let is_name = |name: &str| !name.is_empty() && name != "." && name != ".." && name.len() <= NAME_BYTES_MAX;
    let is_right = path.len() <= PATH_BYTES_MAX
        && path.split('/').count() <= DEPTH_MAX
        && path.split('/').all(is_name)
        && !path.contains(char::is_control);
    ensure!(is_right, "it has a path that is not allowed: {path:?}");
    Ok(())
}

/// Reads bytes as a backup; `true` when they are one. The folder `fuzz/` contains the harness.
///
/// # Panics
///
/// If an invariant is broken.
#[expect(clippy::expect_used, reason = "a broken invariant ends the harness")]
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_archive(data: &[u8]) -> bool {
    let mut files = Vec::new();
    let read = read_archive(data, |entry, body| {
        let mut content = Vec::new();
        body.read_to_end(&mut content)?;
        files.push((entry.clone(), content));
        Ok(())
    });
    let Ok(manifest) = read else { return false };
    let created_s = Header::from_byte_slice(data.get(..BLOCK_BYTES).unwrap_or_default()).mtime().unwrap_or_default();
    let mut writer = ArchiveWriter::new(Vec::new(), created_s).expect("memory takes it");
    for ((entry, content), listed) in files.iter().zip(&manifest.entries) {
        let EntryHead { path, mode, modified_s, length } = entry;
        assert!(!path.starts_with('/') && path.split('/').all(|name| name != ".."));
        let facts = FileFacts { mode: *mode, of_service: listed.of_service, modified_s: *modified_s };
        writer.add(path, facts, *length, content.as_slice()).expect("it was in a backup");
    }
    assert_eq!(writer.finish(manifest).expect("memory takes it"), data, "a backup has one form");
    true
}

#[cfg(test)]
mod tests {
    use tar::Builder;

    use super::*;

    const FACTS: FileFacts = FileFacts { mode: 0o640, of_service: true, modified_s: 1_796_256_000 };

    fn manifest() -> BackupManifest {
        BackupManifest {
            format: FORMAT_VERSION,
            kind: ArchiveKind::Box,
            pair: String::new(),
            ledge: "0.1.0".to_owned(),
            device: "till-7".to_owned(),
            created: "2026-12-02T08:00:00Z".to_owned(),
            formats: String::new(),
            audit_key: None,
            platform: None,
            has_feature_backup: false,
            left_out: Vec::new(),
            entries: Vec::new(),
        }
    }

    fn written(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = ArchiveWriter::new(Vec::new(), 7).unwrap();
        for (path, content) in files {
            writer.add(path, FACTS, content.len() as u64, *content).unwrap();
        }
        writer.finish(manifest()).unwrap()
    }

    fn refusal(file: &[u8]) -> String {
        format!("{:#}", read_archive(file, |_, _| Ok(())).unwrap_err())
    }

    /// An archive of another maker, behind the beginning of ours.
    fn hostile(fill: impl FnOnce(&mut Builder<Vec<u8>>)) -> Vec<u8> {
        let ours = written(&[]);
        let mut builder = Builder::new(ours[..2 * BLOCK_BYTES].to_vec());
        fill(&mut builder);
        builder.into_inner().unwrap()
    }

    #[test]
    fn files_come_back_as_they_were_and_other_programs_read_them() {
        let long = format!("state/{}/a", "x".repeat(200));
        let files = [("state/a", &b"1"[..]), ("state/b/c", b""), (&long, &[7; 1000])];
        let file = written(&files);
        let mut found = Vec::new();
        let read = read_archive(file.as_slice(), |entry, body| {
            let mut content = Vec::new();
            body.read_to_end(&mut content)?;
            assert_eq!((entry.mode, entry.modified_s), (0o640, FACTS.modified_s));
            found.push((entry.path.clone(), content));
            Ok(())
        });
        assert_eq!(read.unwrap().entries.len(), 3);
        let expected: Vec<_> = files.iter().map(|(path, content)| ((*path).to_owned(), content.to_vec())).collect();
        assert_eq!(found, expected);

        let mut others = tar::Archive::new(file.as_slice());
        let names = others.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
        let names: Vec<_> = names.collect();
        assert_eq!(names, ["ledge-backup", "state/a", "state/b/c", &long, "manifest.json", "manifest.sha256"]);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_or_has_one_other_byte_is_refused() {
        let file = written(&[("state/a", b"content"), (&format!("state/{}", "y".repeat(120)), &[1; 700])]);
        assert!(read_archive(file.as_slice(), |_, _| Ok(())).is_ok());
        for length in 0..file.len() {
            assert!(read_archive(&file[..length], |_, _| Ok(())).is_err(), "cut at {length}");
        }
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert!(read_archive(changed.as_slice(), |_, _| Ok(())).is_err(), "byte {at}");
        }
        let longer = [&file[..], b"x"].concat();
        assert!(refusal(&longer).contains("goes on"));
    }

    #[test]
    fn an_entry_that_leads_elsewhere_is_refused() {
        for path in ["/etc/passwd", "state/../../etc/passwd", "state//a", "state/./a", "..", "", "state/a\n"] {
            assert!(check_path(path).is_err(), "{path:?}");
            let file = hostile(|builder| {
                let head = header(EntryType::Regular, path.as_bytes(), 1, 0o600, 7);
                builder.append(&head, &b"x"[..]).unwrap();
            });
            let refused = read_archive(file.as_slice(), |_, _| panic!("{path:?} was taken"));
            assert!(refused.is_err(), "{path:?}");
        }
        for kind in [
            EntryType::Symlink,
            EntryType::Link,
            EntryType::Char,
            EntryType::Block,
            EntryType::Fifo,
            EntryType::Directory,
            EntryType::GNUSparse,
            EntryType::XHeader,
            EntryType::XGlobalHeader,
        ] {
            let file = hostile(|builder| {
                let head = header(kind, b"state/a", 0, 0o600, 7);
                builder.append(&head, &b""[..]).unwrap();
            });
            assert!(refusal(&file).contains("another kind"), "{kind:?}");
        }
    }

    #[test]
    fn files_that_are_there_twice_or_too_large_or_have_another_mode_are_refused() {
        assert!(refusal(&written(&[("state/a", b"1"), ("state/a", b"2")])).contains("twice"));
        assert!(refusal(&written(&[("state/a", b"1"), ("state/a/b", b"2")])).contains("a file and a folder"));
        assert!(refusal(&written(&[("state/a/b", b"1"), ("state/a", b"2")])).contains("a file and a folder"));
        let head = |length, mode| {
            hostile(|builder| {
                builder.append(&header(EntryType::Regular, b"state/a", length, mode, 7), &b""[..]).unwrap();
            })
        };
        assert!(refusal(&head(ENTRY_BYTES_MAX + 1, 0o600)).contains("larger than"));
        assert!(refusal(&head(0, 0o4755)).contains("mode"));
        assert!(refusal(&head(1 << 30, 0o600)).contains("cut off"));
        let long = hostile(|builder| {
            builder.append(&header(EntryType::GNULongName, LONG_NAME_ENTRY, 1 << 30, 0, 0), &b""[..]).unwrap();
        });
        assert!(refusal(&long).contains("long name"));
    }

    #[test]
    fn a_backup_in_a_later_form_says_which_version_reads_it() {
        let mut writer = ArchiveWriter { output: Vec::new(), entries: Vec::new(), created_s: 7 };
        writer.write_own(FORMAT_ENTRY, b"2\n").unwrap();
        let file = writer.finish(manifest()).unwrap();
        assert!(refusal(&file).contains("a later version"));
        for other in ["", "not a backup", &"longer than a block of tar".repeat(40)] {
            assert!(refusal(other.as_bytes()).contains("does not begin as a backup"));
        }
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_ends_the_backup() {
        let mut writer = ArchiveWriter::new(Vec::new(), 7).unwrap();
        assert!(writer.add("state/a", FACTS, 5, &b"1"[..]).is_err());
    }
}
