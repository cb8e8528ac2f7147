//! The findings about models that answer some requests with values that are not finite.

use ledge_part::check::Finding;

use super::Repository;

impl Repository {
    /// The live versions with some answers that have NaN or infinities, while most are finite.
    pub fn wrong_values(&self) -> Vec<Finding> {
        let finding = |model: std::sync::Arc<super::LoadedModel>| {
            let (found, all) = model.statistics.rarely_not_finite()?;
            let detail = format!(
                "version {}: {found} of {all} answers since the start have values that are not finite (NaN, or infinite)",
                model.version
            );
            let advice = "the model or its inputs are at fault: add an input that shows it as a golden input, and go back to \
                          an earlier version until then (`ledge update rollback`)";
            Some(Finding::fail(&format!("values {}", model.name), detail, advice))
        };
        self.all_live().into_iter().filter_map(finding).collect()
    }
}
