//! The access of callers, as a part of the daemon.

use ledge_base::names::{FeatureName, ModelName};
use ledge_base::principal::Principal;
use ledge_base::toml_check::ValueProblem;
use ledge_identity::access::CallerAccess;
use ledge_identity::access_config::AccessConfig;
use ledge_identity::authentication::{Authenticator, CredentialError};
use ledge_service::audit_event::AuditSink;

use crate::api_error::{ApiError, StatusCode};
use crate::route::RouteRule;
use crate::section::ConfigSection;
use crate::{PartEnvironment, Subsystem};

impl ConfigSection for AccessConfig {
    fn problems(&self) -> Vec<ValueProblem> {
        self.problems()
    }
}

impl Subsystem for Authenticator {
    fn name(&self) -> &'static str {
        "access"
    }

    /// Starts the task that reloads the API keys when their file changes.
    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        environment.shutdown.spawn(self.clone().watch(environment.shutdown.clone()));
        Ok(())
    }
}

/// The answer to a credential that is not accepted.
pub fn refused_credential(refused: &CredentialError) -> ApiError {
    let message = refused.to_string();
    match refused {
        CredentialError::TooMany { wait } => ApiError::later(StatusCode::TOO_MANY_REQUESTS, message, *wait),
        CredentialError::Unreadable => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message),
        CredentialError::Malformed
        | CredentialError::Unknown
        | CredentialError::Expired
        | CredentialError::Revoked
        | CredentialError::SessionEnded
        | CredentialError::UnknownCode => ApiError::new(StatusCode::UNAUTHORIZED, message),
    }
}

/// Records and returns the refusal of a caller with access to other models only.
pub fn outside_scope(audit: &AuditSink, rule: &RouteRule, principal: &Principal, access: &CallerAccess) -> ApiError {
    audit.record_denied(principal, "model_scope");
    let (method, path, scope) = (rule.method, rule.path, scope_words(access));
    let message = format!("{principal} may not call {method} {path}: its access is limited to {scope}");
    ApiError::new(StatusCode::FORBIDDEN, message)
}

/// The models or feature views that access is limited to.
fn scope_words(access: &CallerAccess) -> String {
    let listed = |names: Vec<&str>| if names.is_empty() { "(none)".to_owned() } else { names.join(", ") };
    let models = access.models().map(|models| models.iter().map(ModelName::as_str).collect());
    let views = || access.feature_views().views().map(|views| views.iter().map(FeatureName::as_str).collect());
    match models {
        Some(models) => format!("the models {}", listed(models)),
        None => format!("the feature views {}", listed(views().unwrap_or_default())),
    }
}
