//! The compiled models of versions that are not used any more.

use std::collections::HashSet;
use std::time::Duration;

use ledge_base::checked_folder;

use super::Repository;

/// The previous versions of a month can be loaded again without compiling them.
const UNUSED_FOR: Duration = Duration::from_hours(30 * 24);

impl Repository {
    /// Removes the compiled models that nothing has loaded for thirty days. Those of versions that serve stay.
    pub fn remove_unused_compiled(&self) {
        let Some(folder) = &self.shared.defaults.cache_dir else { return };
        let live: HashSet<String> = self.all_live().iter().map(|model| model.digest.clone()).collect();
        // Other entries of the cache are not compiled models.
        let may_go = |name: &str| blake3::Hash::from_hex(name).is_ok() && !live.contains(name);
        match checked_folder::remove_unused(folder, UNUSED_FOR, may_go) {
            Ok(0) => {}
            Ok(versions) => tracing::info!(versions, "removed compiled models that were not used for thirty days"),
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "unused compiled models cannot be removed (runtimes.cache)");
            }
        }
    }
}
