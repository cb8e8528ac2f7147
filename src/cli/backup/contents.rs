//! The files of a box that belong into a backup, and which of them are secret.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context as _;
use ledge_audit::layout::CHECKPOINT;
use ledge_audit::local;
use ledge_base::secret::SecretFile;
use ledge_membership::join::MEMBERSHIP_CREDENTIAL;

use super::archive::FileFacts;
use crate::cli::GlobalArgs;
use crate::config::{Config, PACKAGED_FILE, PACKAGED_ROOT};

/// The first names of entries.
pub const STATE: &str = "state";
pub const SETTINGS: &str = "config";
pub const FEATURES: &str = "features";
pub const UPGRADES: &str = "upgrade";
pub const CREDENTIALS: &str = "credential";

/// Settings that name a file which is no secret.
const PUBLIC_FILE_KEYS: [&str; 7] =
    ["ca_file", "certificate_file", "client_ca_file", "client_crl_file", "pinned_file", "publisher_file", "root_file"];

/// The largest file that is searched for a private key, in bytes.
const SEARCHED_BYTES_MAX: u64 = 1 << 20;

/// The name of a folder of settings that belongs to Ledge as a whole.
const SETTINGS_FOLDER_NAME: &str = "ledge";

/// The folders of a box.
#[derive(Debug, Clone)]
pub struct BoxFolders {
    /// The root of the configuration, which has the state.
    pub state: PathBuf,
    /// The folder of the settings, where it is another one and has nothing but them.
    pub settings: Option<PathBuf>,
    /// True for the paths of an installed package.
    pub is_packaged: bool,
}

impl BoxFolders {
    /// The folders that the options of a command choose.
    pub fn of(globals: &GlobalArgs) -> anyhow::Result<Self> {
        let is_packaged = globals.root.is_none() && globals.config.is_none();
        let file = globals.config.clone().or_else(|| is_packaged.then(|| PathBuf::from(PACKAGED_FILE)));
        let of_file = file.as_deref().map(|file| std::path::absolute(file).map(|file| parent(&file).to_owned()));
        let of_file = of_file.transpose()?;
        let state = match &globals.root {
            Some(root) => std::path::absolute(root)?,
            None if is_packaged => PACKAGED_ROOT.into(),
            None => of_file.clone().unwrap_or_default(),
        };
        // A link leads to the folder that is renamed.
        let state = state.canonicalize().unwrap_or(state);
        let is_own = |folder: &PathBuf| {
            !folder.starts_with(&state) && folder.file_name().is_some_and(|name| name == SETTINGS_FOLDER_NAME)
        };
        let settings = of_file.filter(is_own).map(|folder| folder.canonicalize().unwrap_or(folder));
        Ok(Self { state, settings, is_packaged })
    }

    /// A path of the configuration in the form in which the files of these folders are found: absolute, and without links
    /// above its last name. A link in its place is not followed.
    pub fn real(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let absolute = std::path::absolute(path)?;
        if absolute.canonicalize().is_ok_and(|real| real == self.state) {
            return Ok(self.state.clone());
        }
        let folder = parent(&absolute);
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        Ok(folder.join(absolute.file_name().unwrap_or_default()))
    }

    /// The place of a file in a backup; `None` for one that is elsewhere.
    pub fn entry_of(&self, path: &Path) -> Option<String> {
        let folders = [(STATE, Some(&self.state)), (SETTINGS, self.settings.as_ref())];
        folders.into_iter().find_map(|(name, folder)| {
            let below = path.strip_prefix(folder?).ok()?.to_str()?;
            Some(if below.is_empty() { name.to_owned() } else { format!("{name}/{below}") })
        })
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// A file to back up.
#[derive(Debug)]
pub struct SourceFile {
    pub entry: String,
    pub path: PathBuf,
    /// True for a file that only the file of keys may have.
    pub is_secret: bool,
    /// True for a file of the membership, which may be encrypted for this machine.
    pub of_membership: bool,
}

/// The form in which the feature store comes into the backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureForm {
    /// A running daemon gives a backup.
    FromDaemon,
    /// Nobody has the store open: its files.
    Files,
}

/// Finds the files of a box.
pub struct BoxContents<'a> {
    config: &'a Config,
    folders: &'a BoxFolders,
    owner: u32,
    audit: PathBuf,
    membership: PathBuf,
    /// The stores with many files, in which nothing is a private key.
    stores: [PathBuf; 3],
    secret_paths: BTreeSet<PathBuf>,
    /// The names of credentials that the settings use.
    pub credentials: BTreeSet<String>,
    /// The files that are in no backup, with the reason.
    pub left_out: Vec<String>,
    skipped: Vec<PathBuf>,
}

impl<'a> BoxContents<'a> {
    /// Reads which files the settings name.
    pub fn of(config: &'a Config, folders: &'a BoxFolders, features: FeatureForm) -> anyhow::Result<Self> {
        let owner = std::fs::metadata(&folders.state).with_context(|| folders.state.display().to_string())?.uid();
        let real = |path: &Path| folders.real(path);
        let audit = real(&config.audit.path)?;
        let membership = real(&config.membership.path)?;
        let features_path = real(&config.features.path)?;
        let updates = real(&config.updates.path)?;
        let mut skipped: Vec<PathBuf> = ["lock", "logs", "sync.json"].map(|name| audit.join(name)).into();
        let caches = [&config.runtimes.dir, &config.runtimes.cache, &config.repository.packaged];
        for cache in caches.into_iter().filter(|path| !path.as_os_str().is_empty()) {
            skipped.push(real(cache)?);
        }
        // Downloads that are not complete.
        skipped.push(updates.join("blobs"));
        skipped.extend(["new", "before"].map(|end| membership.with_extension(end)));
        match features {
            FeatureForm::FromDaemon => skipped.push(features_path.clone()),
            FeatureForm::Files => {
                let passing = ["reserve", "restore.upload", "room.probe"];
                skipped.extend(passing.map(|name| features_path.join(name)));
            }
        }
        let mut contents = Self {
            config,
            folders,
            owner,
            audit,
            membership,
            stores: [real(&config.repository.path)?, updates, features_path],
            secret_paths: BTreeSet::new(),
            credentials: BTreeSet::new(),
            left_out: Vec::new(),
            skipped,
        };
        contents.take_named_files()?;
        contents.note_stores_elsewhere(features)?;
        Ok(contents)
    }

    /// Everything but the logs of the audit log, in the order of their names.
    pub fn files(&mut self) -> anyhow::Result<Vec<SourceFile>> {
        let mut found = Vec::new();
        if let Some(settings) = self.folders.settings.clone().filter(|folder| folder.is_dir()) {
            self.walk(&settings, &mut found)?;
        }
        self.walk(&self.folders.state.clone(), &mut found)?;
        let upgrades = &self.config.upgrades.path;
        if !upgrades.starts_with(&self.folders.state) && upgrades.is_dir() {
            self.take_upgrades(&upgrades.clone(), &mut found)?;
        }
        Ok(found)
    }

    /// The files of one log of the audit log, without its checkpoint, so that a reader of them after the checkpoint has
    /// all that it covers: records before hashes, as the writer leaves them, and the newest first, because the oldest may
    /// be removed meanwhile.
    pub fn log_files(&mut self, generation: u32) -> anyhow::Result<Vec<SourceFile>> {
        let log = ledge_audit::layout::log_folder(&self.audit, generation);
        let mut found = Vec::new();
        self.walk(&log, &mut found)?;
        found.retain(|file| file.path.file_name().is_none_or(|name| name != CHECKPOINT));
        let in_records = log.join("tile/entries");
        let (mut of_records, mut of_hashes): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|file| file.path.starts_with(&in_records));
        of_records.reverse();
        of_records.append(&mut of_hashes);
        Ok(of_records)
    }

    /// The logs of the audit log, where they are in the state folder.
    pub fn logs(&self) -> io::Result<Vec<u32>> {
        if self.folders.entry_of(&self.audit).is_none() {
            return Ok(Vec::new());
        }
        local::generations(&self.audit)
    }

    /// What a file's content does not tell.
    pub fn facts(&self, file: &Metadata) -> FileFacts {
        let modified = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        FileFacts {
            mode: file.mode() & 0o777,
            of_service: file.uid() == self.owner,
            modified_s: modified.map_or(0, |since| since.as_secs()),
        }
    }

    fn walk(&mut self, folder: &Path, found: &mut Vec<SourceFile>) -> anyhow::Result<()> {
        let listed = std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut listed = match listed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            listed => listed.with_context(|| folder.display().to_string())?,
        };
        listed.sort_by_key(std::fs::DirEntry::file_name);
        for entry in listed {
            let path = entry.path();
            if self.skipped.contains(&path) || is_passing(&path) {
                continue;
            }
            let kind = entry.file_type().with_context(|| path.display().to_string())?;
            if kind.is_dir() {
                self.walk(&path, found)?;
            } else if kind.is_symlink() {
                let target = std::fs::read_link(&path).unwrap_or_default();
                self.left_out.push(format!("{} (a link to {})", path.display(), target.display()));
            } else if kind.is_file() {
                match self.folders.entry_of(&path) {
                    Some(entry) => {
                        let of_membership = path.starts_with(&self.membership);
                        let is_secret = of_membership || self.is_secret(&path)?;
                        found.push(SourceFile { entry, path, is_secret, of_membership });
                    }
                    None => self.left_out.push(format!("{} (its name is no UTF-8)", path.display())),
                }
            }
        }
        Ok(())
    }

    /// The trusted metadata of root's upgrades, if this user may read it.
    fn take_upgrades(&mut self, folder: &Path, found: &mut Vec<SourceFile>) -> anyhow::Result<()> {
        let Ok(listed) = std::fs::read_dir(folder) else {
            self.left_out.push(format!("{} (it cannot be read)", folder.display()));
            return Ok(());
        };
        for entry in listed {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.symlink_metadata()?.is_file() && path.extension().is_some_and(|end| end == "json") {
                // Another box is no member of the platform, and takes no packages of it.
                let entry = format!("{UPGRADES}/{name}");
                found.push(SourceFile { entry, path, is_secret: true, of_membership: false });
            }
        }
        Ok(())
    }

    fn is_secret(&self, path: &Path) -> anyhow::Result<bool> {
        let is_of_audit = path.starts_with(self.audit.join("tags")) || path.starts_with(self.audit.join("key"));
        if is_of_audit || self.secret_paths.contains(path) {
            return Ok(true);
        }
        if path.starts_with(&self.audit) || self.stores.iter().any(|store| path.starts_with(store)) {
            return Ok(false);
        }
        has_private_key(path).with_context(|| path.display().to_string())
    }

    /// Notes the files that the settings name.
    fn take_named_files(&mut self) -> anyhow::Result<()> {
        let mut named = Vec::new();
        collect_files(&toml::Value::try_from(self.config)?, "", &mut named);
        for (is_secret, text) in named {
            match text.parse::<SecretFile>() {
                Ok(SecretFile::Credential(name)) if name != MEMBERSHIP_CREDENTIAL => {
                    self.credentials.insert(name);
                }
                Ok(SecretFile::Path(path)) => {
                    let path = self.folders.real(&path)?;
                    let is_of_package = path.starts_with("/usr") || path.starts_with(&self.config.upgrades.path);
                    if path.exists() && !is_of_package && self.folders.entry_of(&path).is_none() {
                        self.left_out.push(format!("{} (the settings name it)", path.display()));
                    }
                    if is_secret {
                        self.secret_paths.insert(path);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn note_stores_elsewhere(&mut self, features: FeatureForm) -> anyhow::Result<()> {
        let [repository, updates, store] = &self.stores;
        let state = self.folders.real(&self.config.state.path)?;
        let mut stores = vec![&state, &self.audit, repository, updates, &self.membership];
        if features == FeatureForm::Files {
            stores.push(store);
        }
        for store in stores {
            if store.exists() && self.folders.entry_of(store).is_none() {
                self.left_out.push(format!("{} (it is not in {})", store.display(), self.folders.state.display()));
            }
        }
        Ok(())
    }
}

/// True for files that only a running process needs.
fn is_passing(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    let is_rest = path.extension().is_some_and(|end| end == "tmp" || end == "part");
    is_rest || name == "lock" || name == ".lock" || name == super::RESTORING_MARK
}

/// The values of keys that name files, with true for secrets.
fn collect_files(value: &toml::Value, key: &str, found: &mut Vec<(bool, String)>) {
    match value {
        toml::Value::Table(table) => table.iter().for_each(|(key, value)| collect_files(value, key, found)),
        toml::Value::Array(values) => values.iter().for_each(|value| collect_files(value, key, found)),
        toml::Value::String(text) if !text.is_empty() && (key.ends_with("_file") || key.ends_with("_files")) => {
            found.push((!PUBLIC_FILE_KEYS.contains(&key), text.clone()));
        }
        _ => {}
    }
}

/// True for a file with a private key in PEM.
fn has_private_key(path: &Path) -> io::Result<bool> {
    const MARK: &[u8] = b"PRIVATE KEY-----";
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    if file.metadata()?.len() > SEARCHED_BYTES_MAX {
        return Ok(false);
    }
    let mut content = Vec::new();
    file.by_ref().take(SEARCHED_BYTES_MAX).read_to_end(&mut content)?;
    Ok(content.windows(MARK.len()).any(|window| window == MARK))
}
