//! A model that is not there: where it was looked for, which models have similar names, and where else it may be.

use std::fmt;

use ledge_base::names::ModelName;
use ledge_models::repository::ModelFolders;

/// The most similar names that are shown.
const SHOWN_MAX: usize = 3;
/// The likeness (Jaro, 0 to 1) from which a name was perhaps meant: `efficientnet` has 0.89 with `efficientnet_lite0`.
const LIKENESS_MIN: f64 = 0.75;

/// The places besides the model repository that a command can look at.
#[derive(Debug, Clone, Copy)]
pub enum AlternativeSources {
    /// Another root.
    Root,
    /// Another root, or a running server.
    RootOrServer,
}

/// A model that is not in the model repository.
#[derive(Debug, thiserror::Error)]
#[error("there is no model '{name}' in {folders}{similar} `ledge models list` lists those that are there; {elsewhere}")]
pub struct MissingModel {
    name: ModelName,
    folders: String,
    similar: DidYouMean,
    elsewhere: AlternativeSources,
}

/// Fails for a model that has no folder in the model repository.
pub fn require(sources: &ModelFolders, name: &ModelName, elsewhere: AlternativeSources) -> Result<(), MissingModel> {
    if sources.folder(name).is_dir() {
        return Ok(());
    }
    // Folders that cannot be read have no names to propose.
    let (known, _) = sources.models().unwrap_or_default();
    let similar = DidYouMean::new(name, known.iter().map(ModelName::as_str));
    Err(MissingModel { name: name.clone(), folders: sources.describe(), similar, elsewhere })
}

impl fmt::Display for AlternativeSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "--root DIR looks in another folder",
            Self::RootOrServer => "--root DIR looks in another folder, and --url URL asks a running server",
        })
    }
}

/// The end of a sentence about a missing model: the names that were perhaps meant, as a question.
#[derive(Debug)]
pub struct DidYouMean(Vec<String>);

impl DidYouMean {
    /// The names among `known` that are most like `name`.
    pub fn new<'n>(name: &ModelName, known: impl Iterator<Item = &'n str>) -> Self {
        let wanted = name.as_str().to_ascii_lowercase();
        let likeness = |known: &str| strsim::jaro(&wanted, &known.to_ascii_lowercase());
        let mut found: Vec<_> = known.map(|known| (likeness(known), known)).collect();
        found.retain(|(likeness, known)| *likeness >= LIKENESS_MIN && *known != name.as_str());
        found.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(other.1)));
        found.dedup();
        Self(found.into_iter().take(SHOWN_MAX).map(|(_, name)| name.to_owned()).collect())
    }
}

impl fmt::Display for DidYouMean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => f.write_str("."),
            names => write!(f, ". Did you mean {}?", names.join(" or ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_proposed_the_most_similar_first() {
        let known = ["coco_detector", "coco_detector_512", "efficientnet_lite0", "face_detector", "wine_mlp"];
        let asked = |name: &str| DidYouMean::new(&name.parse().unwrap(), known.into_iter()).to_string();
        assert_eq!(asked("efficientnet"), ". Did you mean efficientnet_lite0?");
        assert_eq!(asked("Wine-MLP"), ". Did you mean wine_mlp?");
        assert!(asked("coco_detektor").starts_with(". Did you mean coco_detector or "), "{}", asked("coco_detektor"));
        assert_eq!(asked("bert"), ".");
    }
}
