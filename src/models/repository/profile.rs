//! Profiles measured on this box: the runtime, cores of a run, number of instances and batch size that suit a model. A
//! profile holds for one CPU, one content of the model and one pair of runtime versions; anything else has another
//! profile.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ledge_base::durable;
use ledge_base::telemetry::system::Cpu;
use ledge_engine::Runtimes;
use ledge_engine::backend::Runtime;
use serde::{Deserialize, Serialize};

/// Runtime and resources that a model is run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunProfileChoice {
    pub runtime: Runtime,
    pub threads: usize,
    /// The most instances.
    pub instances: usize,
    /// The most batch elements of several requests in one run; 1 runs each request separately.
    pub batch: usize,
}

/// Source of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunProfileSource {
    /// Runtimes were compared with a few runs at a load.
    Quick,
    /// `ledge tune` searched.
    Tuned,
}

/// A choice and its source, as stored on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunProfile {
    pub choice: RunProfileChoice,
    pub effort: RunProfileSource,
    /// The goal of the measurement: `throughput`, `latency`, or `p99 <= 20 ms at 50/s`.
    pub goal: String,
    /// The measured figures, for people.
    pub measured: String,
}

impl fmt::Display for RunProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.effort {
            RunProfileSource::Quick => "compared at a load",
            RunProfileSource::Tuned => "tuned",
        };
        write!(f, "{how} for {}: {}", self.goal, self.measured)
    }
}

impl RunProfile {
    fn parse(content: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(content)
    }

    fn encode(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec_pretty(self)
    }
}

/// The profiles of one box, a file each. Clones share them.
#[derive(Debug, Clone)]
pub struct RunProfiles {
    shared: Arc<RunProfilesInner>,
}

#[derive(Debug)]
struct RunProfilesInner {
    /// `None` stores nothing.
    folder: Option<PathBuf>,
    cores: usize,
    /// Text that distinguishes this CPU from others; read when it is first needed.
    cpu: OnceLock<String>,
}

impl RunProfiles {
    /// The profiles in `folder`/profiles that hold for this machine, and models on `cores` cores.
    pub fn new(folder: Option<&Path>, cores: usize) -> Self {
        let folder = folder.map(|folder| folder.join("profiles"));
        Self { shared: Arc::new(RunProfilesInner { folder, cores, cpu: OnceLock::new() }) }
    }

    /// Profiles that store nothing.
    pub fn none() -> Self {
        Self::new(None, 0)
    }

    /// The profile of the model with this digest of its files, in these runtimes. A file that cannot be read counts as
    /// missing, so the model is measured again.
    pub fn get(&self, digest: &str, runtimes: &Runtimes) -> Option<RunProfile> {
        let path = self.path(digest, runtimes)?;
        let text = fs::read(&path).ok()?;
        match RunProfile::parse(&text) {
            Ok(profile) => Some(profile),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a tuning profile is damaged and ignored; the model is measured again");
                None
            }
        }
    }

    /// Stores a profile. Returns its path, or `None` when nothing is stored.
    pub fn put(&self, digest: &str, runtimes: &Runtimes, profile: &RunProfile) -> std::io::Result<Option<PathBuf>> {
        let Some(path) = self.path(digest, runtimes) else { return Ok(None) };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        durable::replace(&path, &profile.encode().map_err(std::io::Error::other)?)?;
        Ok(Some(path))
    }

    /// A hash of this `model.toml`, this CPU and these runtimes. The facts known about a version hold for these, on any
    /// number of cores.
    pub fn conditions(&self, config_text: &str, runtimes: &Runtimes) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(blake3::hash(config_text.as_bytes()).as_bytes());
        hasher.update(self.cpu().as_bytes());
        hasher.update(runtimes.libraries().as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    fn cpu(&self) -> &str {
        self.shared.cpu.get_or_init(|| {
            let cpu = Cpu::detect(Path::new("/"));
            let features: Vec<&str> = cpu.features.iter().filter(|f| f.present).map(|f| f.name).collect();
            format!("{}\n{}\n", cpu.model, features.join(" "))
        })
    }

    fn path(&self, digest: &str, runtimes: &Runtimes) -> Option<PathBuf> {
        let folder = self.shared.folder.as_ref()?;
        Some(folder.join(format!("{}.json", self.name(digest, runtimes))))
    }

    /// A name for a digest on this machine with these runtimes. It has a fixed length, so it cannot run into the rest.
    fn name(&self, digest: &str, runtimes: &Runtimes) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(digest.as_bytes());
        hasher.update(self.cpu().as_bytes());
        hasher.update(format!("{}\n", self.shared.cores).as_bytes());
        hasher.update(runtimes.libraries().as_bytes());
        hasher.finalize().to_hex().chars().take(32).collect()
    }
}

/// Reads a profile; true when it is one. It is the same after it was written and read again. The folder `fuzz/` and
/// `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_profile(data: &[u8]) -> bool {
    let Ok(profile) = RunProfile::parse(data) else { return false };
    let written = profile.encode().unwrap_or_default();
    assert!(RunProfile::parse(&written).is_ok_and(|again| again == profile), "{}", written.escape_ascii());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> RunProfile {
        let choice = RunProfileChoice { runtime: Runtime::OpenVino, threads: 2, instances: 1, batch: 4 };
        RunProfile {
            choice,
            effort: RunProfileSource::Tuned,
            goal: "latency".to_owned(),
            measured: "p50 2.1 ms".to_owned(),
        }
    }

    fn runtimes() -> Runtimes {
        Runtimes::new("/nowhere".into())
    }

    fn profiles(folder: &Path, cores: usize) -> RunProfiles {
        RunProfiles::new(Some(folder), cores)
    }

    #[test]
    fn a_profile_holds_for_one_model_on_one_machine() {
        let folder = tempfile::tempdir().unwrap();
        let two = profiles(folder.path(), 2);
        let path = two.put("abc", &runtimes(), &profile()).unwrap().unwrap();
        assert!(path.starts_with(folder.path().join("profiles")));
        assert_eq!(two.get("abc", &runtimes()), Some(profile()));
        assert_eq!(two.get("abd", &runtimes()), None);
        assert_eq!(profiles(folder.path(), 4).get("abc", &runtimes()), None);
    }

    #[test]
    fn conditions_hold_for_one_config_on_any_number_of_cores() {
        let folder = tempfile::tempdir().unwrap();
        let conditions = |cores, text| profiles(folder.path(), cores).conditions(text, &runtimes());
        assert_eq!(conditions(2, "x = 1"), conditions(2, "x = 1"));
        assert_ne!(conditions(2, "x = 1"), conditions(2, "x = 2"));
        assert_eq!(conditions(2, "x = 1"), conditions(4, "x = 1"));
    }

    #[test]
    fn a_damaged_profile_is_none_and_can_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let profiles = profiles(folder.path(), 2);
        let path = profiles.put("abc", &runtimes(), &profile()).unwrap().unwrap();
        durable::replace(&path, b"{\"choice\":").unwrap();
        assert_eq!(profiles.get("abc", &runtimes()), None);
        profiles.put("abc", &runtimes(), &profile()).unwrap();
        assert_eq!(profiles.get("abc", &runtimes()), Some(profile()));
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let nowhere = RunProfiles::none();
        assert_eq!(nowhere.put("abc", &runtimes(), &profile()).unwrap(), None);
        assert_eq!(nowhere.get("abc", &runtimes()), None);
    }
}
