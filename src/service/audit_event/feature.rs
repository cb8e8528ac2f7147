//! Reads and pushes of feature views on their way into the audit log: counted by the minute, with tags of the entities.

use std::collections::HashSet;
use std::sync::Arc;

use ledge_base::names::ModelName;
use ledge_base::principal::Principal;

use super::tag::Tag;

/// The default for the most entities that a record lists.
pub const ENTITIES: u32 = 256;

/// The access to rows of a feature view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FeatureAction {
    Read,
    Push,
}

/// The key that reads and pushes are counted by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FeatureKey {
    pub action: FeatureAction,
    pub view: Arc<str>,
    /// The model that read for the caller; `None` when the caller got the values.
    pub model: Option<ModelName>,
    pub principal: Principal,
}

/// The reads or pushes of one key within a minute.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureCounts {
    pub calls: u64,
    /// The number of rows; an entity that occurs twice counts twice.
    pub rows: u64,
    /// The tags of the entities, up to the limit of a record.
    pub entities: HashSet<Tag>,
    /// The number of rows of other entities.
    pub unlisted: u64,
}

impl FeatureCounts {
    /// Counts `rows` rows, with the tags of their entities, if there are tags.
    pub fn count(&mut self, calls: u64, rows: u64, tags: &[Tag], entities_max: usize) {
        self.calls += calls;
        self.rows += rows;
        self.unlisted += rows.saturating_sub(tags.len() as u64);
        for tag in tags {
            if self.entities.len() < entities_max {
                self.entities.insert(*tag);
            } else if !self.entities.contains(tag) {
                self.unlisted += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tag::TagKey;
    use super::*;

    #[test]
    fn every_row_is_of_an_entity_that_is_listed_or_is_counted_as_unlisted() {
        let key = TagKey::new(1, [3; 32]);
        let tags: Vec<_> = (0..5).map(|entity| key.of_text(&entity.to_string())).collect();
        let mut counts = FeatureCounts::default();
        counts.count(1, 3, &tags[..3], 4);
        counts.count(1, 5, &tags, 4);
        assert_eq!((counts.calls, counts.rows, counts.entities.len(), counts.unlisted), (2, 8, 4, 1));
        // Without a key for tags there are no tags.
        counts.count(0, 7, &[], 4);
        assert_eq!((counts.calls, counts.rows, counts.unlisted), (2, 15, 8));
    }
}
