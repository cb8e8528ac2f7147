//! Every point at which a program can be cut off, from one run of it.
//!
//! The run is recorded by the shim, call by call. The files that it leaves when it ends after any of them, by `kill -9`
//! or by a power cut, are computed from the record: the program is not run once for each point, and no point is missed
//! because another thread was quicker. Injection by `strace` counts the calls of each thread for itself.

use std::path::{Path, PathBuf};

use super::disk::{Disk, Log};
use super::seed::Random;
use super::shim::Shim;

/// A run that is to be recorded.
pub struct Recording {
    shim: Shim,
    folder: PathBuf,
    before: Disk,
}

/// The points of a run.
pub struct Points {
    before: Disk,
    log: Log,
}

/// The ways to cut a program off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutOff {
    /// The system goes on, and has everything that was written.
    Kill,
    /// Bytes that were not fsynced may be there, or be missing, or be zeros.
    Power,
}

impl Recording {
    /// Records the calls below `folder` from now on, of programs that are started with [`Self::variables`].
    pub fn new(folder: &Path) -> Self {
        let folder = folder.canonicalize().unwrap();
        Self { shim: Shim::build(), before: Disk::of(&folder), folder }
    }

    /// For the environment of the program.
    pub fn variables(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("LD_PRELOAD", self.shim.library()),
            ("FAULT_FOLDER", self.folder.clone()),
            ("FAULT_LOG", self.shim.file("log")),
        ]
    }

    /// The program has ended.
    pub fn points(self) -> Points {
        Points { log: Log::read(&self.shim.file("log")), before: self.before }
    }
}

impl Points {
    /// The number of points: one after each call that changes a file or a name, and one before the first.
    pub fn count(&self) -> usize {
        self.log.calls() + 1
    }

    /// All of them.
    pub fn all(&self) -> Vec<usize> {
        (0..self.count()).collect()
    }

    /// The points before and after each fsync, and each change of a name.
    pub fn steps(&self) -> Vec<usize> {
        self.all().into_iter().filter(|point| self.log.is_step(*point) || self.log.is_step(point + 1)).collect()
    }

    /// `count` of [`Self::steps`] from the first to the last, at least two.
    pub fn spread(&self, count: usize) -> Vec<usize> {
        let steps = self.steps();
        let mut points: Vec<_> = (0..count).map(|n| steps[n * (steps.len() - 1) / (count - 1)]).collect();
        points.dedup();
        points
    }

    /// The files, and their lengths, as the program saw them at `point`.
    pub fn lengths(&self, point: usize) -> std::collections::BTreeMap<PathBuf, u64> {
        self.at(point).lengths()
    }

    /// Replaces the folder by the files that are left after `point`.
    pub fn leave(&self, point: usize, how: CutOff, random: &mut Random) {
        match how {
            CutOff::Kill => self.at(point).kill(),
            CutOff::Power => _ = self.at(point).cut_power(random),
        }
    }

    fn at(&self, point: usize) -> Disk {
        let mut disk = self.before.clone();
        disk.run(&self.log, point);
        disk
    }
}
