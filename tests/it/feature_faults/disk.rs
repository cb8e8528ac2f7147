//! A disk that forgets bytes that were not fsynced: the states of a folder after a power cut, from the record of the
//! shim.
//!
//! * The content of a file is that at its last fsync. Of what was written since, each page of 4 KiB has the state after
//!   any number of the writes that touched it, and the length any that it had.
//! * A name that was created, changed or removed counts once its folder was fsynced; of those since, any number of the
//!   earliest count.
//! * Hard links are names of one file.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::seed::Random;

const PAGE: usize = 4096;
/// The fixed part of a record of the shim.
const RECORD: usize = 40;

#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, data: Vec<u8> },
    Length(usize),
}

/// The content of one file.
#[derive(Debug, Default, Clone)]
struct Node {
    synced: Vec<u8>,
    since: Vec<Change>,
}

#[derive(Debug, Clone, Copy)]
enum Entry {
    Folder,
    File(usize),
}

#[derive(Debug, Clone)]
enum Naming {
    Add(PathBuf, Entry),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

type Names = BTreeMap<PathBuf, Entry>;

/// The model.
#[derive(Clone)]
pub struct Disk {
    folder: PathBuf,
    nodes: Vec<Node>,
    by_inode: HashMap<u64, usize>,
    seen: Names,
    synced: Names,
    since: Vec<Naming>,
    /// Drops even the bytes of the journal that were fsynced.
    pub lies: bool,
}

/// The record of the shim, cut into calls.
pub struct Log {
    bytes: Vec<u8>,
    /// The offset of each call, and the end of the last one.
    starts: Vec<usize>,
}

impl Log {
    /// Reads it. The last call may be there by half: the program was killed.
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let (mut at, mut starts) = (0, vec![0]);
        while let Some(record) = bytes.get(at..at + RECORD) {
            let (path, other, data) = (number(record, 4, 4), number(record, 8, 4), number(record, 32, 8));
            at += RECORD + path + other + data;
            if at > bytes.len() {
                break;
            }
            starts.push(at);
        }
        Self { bytes, starts }
    }

    /// The number of calls.
    pub fn calls(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns `true` if the call of this number, from 1 on, is an fsync or changes a name.
    pub fn is_step(&self, call: usize) -> bool {
        let start = call.checked_sub(1).filter(|_| call <= self.calls()).map(|before| self.starts[before]);
        start.is_some_and(|start| number(&self.bytes[start..], 0, 4) > 3)
    }

    /// The length of the log after this many calls.
    pub fn length(&self, calls: usize) -> u64 {
        self.starts[calls] as u64
    }
}

fn number(record: &[u8], at: usize, length: usize) -> usize {
    let mut bytes = [0; 8];
    bytes[..length].copy_from_slice(&record[at..at + length]);
    usize::try_from(u64::from_le_bytes(bytes)).unwrap()
}

impl Disk {
    /// Everything in `folder` is on the disk.
    pub fn of(folder: &Path) -> Self {
        let mut disk = Self {
            folder: folder.to_owned(),
            nodes: Vec::new(),
            by_inode: HashMap::new(),
            seen: Names::from([(folder.to_owned(), Entry::Folder)]),
            synced: Names::new(),
            since: Vec::new(),
            lies: false,
        };
        disk.read(folder);
        disk.synced = disk.seen.clone();
        disk
    }

    fn read(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.seen.insert(path.clone(), Entry::Folder);
                self.read(&path);
            } else {
                let inode = std::fs::metadata(&path).unwrap().ino();
                let node = *self.by_inode.entry(inode).or_insert(self.nodes.len());
                if node == self.nodes.len() {
                    self.nodes.push(Node { synced: std::fs::read(&path).unwrap(), since: Vec::new() });
                }
                self.seen.insert(path, Entry::File(node));
            }
        }
    }

    /// Does the first `calls` calls.
    pub fn run(&mut self, log: &Log, calls: usize) {
        for bounds in log.starts.windows(2).take(calls) {
            self.call(&log.bytes[bounds[0]..bounds[1]]);
        }
    }

    fn call(&mut self, record: &[u8]) {
        let (kind, path, other) = (number(record, 0, 4), number(record, 4, 4), number(record, 8, 4));
        let (truncates, inode, offset) =
            (number(record, 12, 4) == 1, number(record, 16, 8) as u64, number(record, 24, 8));
        let (path, rest) = record[RECORD..].split_at(path);
        let (other, data) = rest.split_at(other);
        let name = |bytes: &[u8]| PathBuf::from(String::from_utf8(bytes.to_vec()).unwrap());
        let (path, other) = (name(path), name(other));
        match kind {
            1 => {
                if !self.seen.contains_key(&path) {
                    self.by_inode.insert(inode, self.nodes.len());
                    self.name(Naming::Add(path, Entry::File(self.nodes.len())));
                    self.nodes.push(Node::default());
                } else if truncates {
                    self.node(inode).since.push(Change::Length(0));
                }
            }
            2 => self.node(inode).since.push(Change::Write { offset, data: data.to_vec() }),
            3 => self.node(inode).since.push(Change::Length(offset)),
            4 if self.lies && path.starts_with(self.folder.join("journal")) => {}
            4 => self.node(inode).sync(),
            5 => self.sync_names(&path),
            6 => self.name(Naming::Rename(path, other)),
            7 | 9 => self.name(Naming::Remove(path)),
            8 => self.name(Naming::Add(path, Entry::Folder)),
            10 => self.name(Naming::Add(path, Entry::File(self.by_inode[&inode]))),
            kind => panic!("the shim recorded a call of kind {kind}"),
        }
    }

    fn node(&mut self, inode: u64) -> &mut Node {
        let node = self.by_inode[&inode];
        &mut self.nodes[node]
    }

    fn name(&mut self, naming: Naming) {
        naming.apply(&mut self.seen);
        self.since.push(naming);
    }

    fn sync_names(&mut self, folder: &Path) {
        for naming in std::mem::take(&mut self.since) {
            if naming.is_in(folder) {
                naming.apply(&mut self.synced);
            } else {
                self.since.push(naming);
            }
        }
    }

    /// Replaces the content of the folder by the part that survives; returns the number of files that differ.
    pub fn cut_power(mut self, random: &mut Random) -> usize {
        let counts = random.below(self.since.len() + 1);
        self.since.truncate(counts);
        self.since.iter().for_each(|naming| naming.apply(&mut self.synced));
        let survivors: Vec<_> = self.nodes.iter().map(|node| node.survives(random)).collect();
        self.put(&self.synced, &survivors)
    }

    /// Replaces the content of the folder by the program's writes so far, as after a kill without a power cut.
    pub fn kill(self) {
        let contents: Vec<_> = self.nodes.iter().map(Node::current).collect();
        self.put(&self.seen, &contents);
    }

    /// The files as the program saw them, with their lengths.
    pub fn lengths(&self) -> BTreeMap<PathBuf, u64> {
        let file = |(path, entry): (&PathBuf, &Entry)| match entry {
            Entry::Folder => None,
            Entry::File(node) => Some((path.clone(), self.nodes[*node].current().len() as u64)),
        };
        self.seen.iter().filter_map(file).collect()
    }

    fn put(&self, names: &Names, contents: &[Vec<u8>]) -> usize {
        std::fs::remove_dir_all(&self.folder).unwrap();
        std::fs::create_dir(&self.folder).unwrap();
        let (mut torn, mut first) = (0, HashMap::new());
        for (path, entry) in names {
            // A folder with a lost name is empty.
            let mut above = path.ancestors().skip(1).take_while(|above| above.starts_with(&self.folder));
            if !above.all(|above| names.contains_key(above)) {
                continue;
            }
            match entry {
                Entry::Folder => std::fs::create_dir_all(path).unwrap(),
                Entry::File(node) => {
                    if let Some(first) = first.get(node) {
                        std::fs::hard_link(first, path).unwrap();
                        continue;
                    }
                    first.insert(node, path);
                    torn += usize::from(contents[*node] != self.nodes[*node].current());
                    crate::daemon::write(path, &contents[*node]);
                }
            }
        }
        torn
    }
}

impl Naming {
    fn is_in(&self, folder: &Path) -> bool {
        match self {
            Self::Add(path, _) | Self::Remove(path) => path.parent() == Some(folder),
            Self::Rename(from, to) => [from, to].iter().any(|path| path.parent() == Some(folder)),
        }
    }

    fn apply(&self, names: &mut Names) {
        let below = |names: &Names, folder: &Path| -> Vec<PathBuf> {
            names.keys().filter(|path| path.starts_with(folder)).cloned().collect()
        };
        match self {
            Self::Add(path, entry) => _ = names.insert(path.clone(), *entry),
            // The contents of a folder were removed before, and another folder may have its name by now.
            Self::Remove(path) => _ = names.remove(path),
            Self::Rename(from, to) => {
                let moved = below(names, from);
                if !moved.is_empty() {
                    for path in below(names, to) {
                        names.remove(&path);
                    }
                }
                for path in moved {
                    let entry = names.remove(&path).unwrap();
                    let rest = path.strip_prefix(from).unwrap();
                    names.insert(if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) }, entry);
                }
            }
        }
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => {
                let end = offset + data.len();
                content.resize(content.len().max(end), 0);
                content[*offset..end].copy_from_slice(data);
            }
            Self::Length(length) => content.resize(*length, 0),
        }
    }

    /// The range that it touches in a file of this length.
    fn range(&self, length: usize) -> (usize, usize) {
        match self {
            Self::Write { offset, data } => (*offset, offset + data.len()),
            Self::Length(new) => (*new.min(&length), length.max(*new)),
        }
    }
}

impl Node {
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.since) {
            change.apply(&mut self.synced);
        }
    }

    fn current(&self) -> Vec<u8> {
        let mut current = self.synced.clone();
        self.since.iter().for_each(|change| change.apply(&mut current));
        current
    }

    fn survives(&self, random: &mut Random) -> Vec<u8> {
        if self.since.is_empty() || random.one_in(4) {
            return self.synced.clone();
        }
        // Every state that the file had; of each page, any that it had.
        let mut current = self.synced.clone();
        let mut lengths = vec![current.len()];
        let mut versions: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        for change in &self.since {
            let (from, to) = change.range(current.len());
            for page in from / PAGE..to.div_ceil(PAGE) {
                versions.entry(page).or_insert_with(|| vec![page_of(&self.synced, page)]);
            }
            change.apply(&mut current);
            lengths.push(current.len());
            for page in from / PAGE..to.div_ceil(PAGE) {
                versions.get_mut(&page).unwrap().push(page_of(&current, page));
            }
        }
        let length = lengths[random.below(lengths.len())];
        let mut survivor = self.synced.clone();
        survivor.resize(length, 0);
        for (page, versions) in versions {
            let version = match random.below(3) {
                0 => 0,
                1 => versions.len() - 1,
                _ => random.below(versions.len()),
            };
            let start = page * PAGE;
            if let Some(place) = survivor.get_mut(start..(start + PAGE).min(length)) {
                place.copy_from_slice(&versions[version][..place.len()]);
            }
        }
        survivor
    }
}

fn page_of(content: &[u8], page: usize) -> Vec<u8> {
    let start = (page * PAGE).min(content.len());
    let mut bytes = content[start..content.len().min(start + PAGE)].to_vec();
    bytes.resize(PAGE, 0);
    bytes
}
