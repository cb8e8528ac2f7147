//! Findings about bindings: the feature views and the models that they name.

use std::cell::LazyCell;

use ledge_base::toml_check::ValueProblem;
use ledge_features::config::FeaturesConfig;
use ledge_features::registry::Registry;
use ledge_models::repository;
use ledge_mqtt::bindings::{self, BindingModel};
use ledge_service::audit_event::AuditSink;
use ledge_updates::configuration;

use super::Config;
use crate::daemon::Standalone;

/// Findings about the feature views and models of bindings.
#[derive(Debug, Default)]
pub struct BindingFindings {
    /// Mistakes: a part of every message, or all of it, would have no effect.
    pub problems: Vec<ValueProblem>,
    /// Notes: a model that may still be added.
    pub notes: Vec<ValueProblem>,
}

/// Compares bindings with the declared feature views, and with the models on the disk as far as they are known
/// without a runtime. Both may change while the daemon runs, so it also starts with bindings that do not fit:
/// `bindings::warn_of_misfits`.
pub fn findings(config: &Config) -> BindingFindings {
    let mut findings = BindingFindings::default();
    let FeaturesConfig { views, path, .. } = &config.features;
    let registry = Registry::load(views, path);
    if let Ok(registry) = &registry {
        for (index, binding) in config.mqtt.bindings.iter().enumerate() {
            findings.problems.extend(bindings::against_views(binding, registry).into_iter().map(|problem| {
                let reason = format!("{}; feature views are declared in {}", problem.reason, views.display());
                ValueProblem::new(format!("mqtt.bindings[{index}].{}", problem.key), reason)
            }));
        }
    }

    // Mistakes in the declarations are reported separately.
    let registry = registry.unwrap_or_default();
    let sources = repository::ModelFolders::of(&config.repository);
    // Started for the first model.
    let standalone = LazyCell::new(|| Standalone::new(config, AuditSink::to_nowhere()));
    let managed = configuration::managed_models(&config.updates.path);

    for (index, binding) in config.mqtt.bindings.iter().enumerate() {
        let Some(name) = &binding.model else { continue };
        let key = |key: &str| format!("mqtt.bindings[{index}].{key}");
        let note = |note: String| ValueProblem::new(key("model"), note);
        if managed.contains(name) {
            // Its files may be encrypted. The daemon checks once the model is loaded.
            continue;
        }
        let found = match sources.on_disk(name, binding.version) {
            Ok(Some(found)) => found,
            Ok(None) => {
                let absent = format!("there is no model {name} in {} yet", sources.owners().display());
                findings.notes.push(note(absent));
                continue;
            }
            Err(error) => {
                findings.notes.push(note(format!("the model {name} cannot be read: {error}")));
                continue;
            }
        };
        let inputs = found.served.map(|version| standalone.repository().input_names(name, version)).transpose();
        let inputs = match inputs {
            Ok(inputs) => inputs.flatten(),
            Err(error) => {
                findings.notes.push(note(format!("the model {name} cannot be read: {error}")));
                continue;
            }
        };
        if found.served.is_none() {
            let which = binding.version.map_or_else(
                || "it has no version".to_owned(),
                |version| format!("its version {version} is not served"),
            );
            findings.notes.push(note(format!("the model {name} cannot answer: {which}")));
        }
        let model = BindingModel { name, config: &found.config, inputs: inputs.as_deref() };
        let problems = bindings::against_model(binding, &registry, model).into_iter();
        findings.problems.extend(problems.map(|problem| ValueProblem::new(key(&problem.key), problem.reason)));
    }
    findings
}
