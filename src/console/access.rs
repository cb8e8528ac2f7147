//! `GET /access`: the identity and the permissions of the caller.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use ledge_base::names::{DeviceName, FeatureName, ModelName};
use ledge_identity::access::{CallerAccess, Permission, Role};
use ledge_identity::authentication::{Caller, CallerProof};
use ledge_part::reply::json;
use serde::Serialize;

use crate::state::ConsoleHttpState;

#[derive(Serialize)]
struct AccessDocument<'a> {
    /// The name of this box.
    device: &'a DeviceName,
    /// True where a broker is configured, so that models can be called over MQTT.
    mqtt: bool,
    /// The caller, as in the audit log.
    name: String,
    credential: &'static str,
    roles: &'a [Role],
    permissions: Vec<&'static str>,
    /// `None` is all of them, as for feature views.
    models: Option<Vec<&'a str>>,
    feature_views: Option<Vec<&'a str>>,
}

/// `GET /access`.
pub async fn access(State(console): State<ConsoleHttpState>, Extension(caller): Extension<Caller>) -> Response {
    let Caller { principal, access, proof, .. } = &caller;
    json(&AccessDocument {
        device: &console.device,
        mqtt: console.has_broker,
        name: principal.to_string(),
        credential: credential(proof),
        roles: access.roles(),
        permissions: permissions(access),
        models: access.models().map(|models| models.iter().map(ModelName::as_str).collect()),
        feature_views: access.feature_views().views().map(|views| views.iter().map(FeatureName::as_str).collect()),
    })
}

fn credential(proof: &CallerProof) -> &'static str {
    match proof {
        CallerProof::None | CallerProof::UnlistedCertificate(_) => "none",
        CallerProof::User => "user",
        CallerProof::Certificate => "certificate",
        CallerProof::Key => "key",
        CallerProof::Session => "session",
    }
}

fn permissions(access: &CallerAccess) -> Vec<&'static str> {
    names(Permission::ALL.into_iter().filter(|one| access.allows(*one)))
}

/// The names of permissions, without those that every caller has.
pub(crate) fn names(permissions: impl Iterator<Item = Permission>) -> Vec<&'static str> {
    permissions.filter(|one| *one != Permission::Public).map(Permission::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_everybody_may_is_no_permission() {
        assert_eq!(permissions(&CallerAccess::default()), [""; 0]);
        assert_eq!(permissions(&CallerAccess::new([Role::Operator], None, None)), ["view", "operate"]);
    }
}
