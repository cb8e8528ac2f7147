//! The section `[jobs]` of the configuration.

use std::path::{Component, Path, PathBuf};

use ledge_base::config_path;
use ledge_base::toml_check::{ValueProblem, empty_if_none, in_range, none_if_empty};
use ledge_models::serving::windows::DailyWindow;
use serde::{Deserialize, Serialize};

/// The folder and the limits of jobs, and the folders of the owner that jobs may name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobsConfig {
    /// The folder of the queue.
    pub path: PathBuf,
    /// The folders that jobs may read and write, with all below them.
    pub folders: Vec<PathBuf>,
    /// The time of day, in local time, of jobs that name none. Without one they run at any time.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub window: Option<DailyWindow>,
    /// The most jobs, with those that have ended and are kept.
    #[serde(deserialize_with = "in_range::<1, 1_000, _, _>")]
    pub max_jobs: usize,
    /// The most that the inputs and results of all jobs take in `path`, in MiB.
    #[serde(deserialize_with = "in_range::<1, 1_048_576, _, _>")]
    pub max_mb: u64,
    /// Jobs wait while less than this is free on the disk of `path`, in MiB.
    #[serde(deserialize_with = "in_range::<16, 1_048_576, _, _>")]
    pub min_free_mb: u64,
}

impl Default for JobsConfig {
    fn default() -> Self {
        Self { path: "jobs".into(), folders: Vec::new(), window: None, max_jobs: 100, max_mb: 1024, min_free_mb: 64 }
    }
}

impl JobsConfig {
    pub(crate) fn resolve_paths(&mut self, root: &Path) {
        config_path::resolve(&mut self.path, root);
    }

    pub(crate) fn mistakes(&self) -> Vec<ValueProblem> {
        let is_folder = |folder: &PathBuf| folder.is_absolute() && folder.parent().is_some() && is_plain(folder);
        let wrong = self.folders.iter().enumerate().filter(|(_, folder)| !is_folder(folder));
        let problem = |(index, _): (usize, &PathBuf)| {
            ValueProblem::new(format!("folders[{index}]"), "is no absolute path of a folder, without `..`")
        };
        wrong.map(problem).collect()
    }

    /// The folder of [`Self::folders`] that a path is in, and the rest of the path; `None` if it is in none.
    pub(crate) fn folder_of<'a>(&'a self, path: &'a Path) -> Option<(&'a Path, &'a Path)> {
        let within = |folder: &'a PathBuf| Some((folder.as_path(), path.strip_prefix(folder).ok()?));
        self.folders.iter().filter_map(within).find(|_| is_plain(path))
    }
}

fn is_plain(path: &Path) -> bool {
    path.components().all(|component| matches!(component, Component::RootDir | Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_names_paths_below_listed_folders_only() {
        let config = JobsConfig { folders: vec!["/srv/a".into(), "/data".into()], ..JobsConfig::default() };
        let of =
            |path: &'static str| config.folder_of(Path::new(path)).map(|(_, rest)| rest.to_str().unwrap().to_owned());
        assert_eq!(of("/srv/a/b/c.csv").as_deref(), Some("b/c.csv"));
        assert_eq!(of("/data").as_deref(), Some(""));
        for outside in ["/srv/ab", "/srv", "/srv/a/../b", "srv/a", "/etc/passwd", "/data/../etc"] {
            assert_eq!(of(outside), None, "{outside}");
        }
        assert!(config.mistakes().is_empty());
        let wrong = JobsConfig { folders: vec!["/".into(), "a".into(), "/a/../b".into()], ..config };
        let keys: Vec<_> = wrong.mistakes().into_iter().map(|problem| problem.key).collect();
        assert_eq!(keys, ["folders[0]", "folders[1]", "folders[2]"]);
    }
}
