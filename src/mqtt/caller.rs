//! The sender of a request and its permission: the holder of the API key in the user property `authorization`, or else
//! an anonymous client of the broker.

use std::time::Instant;

use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_identity::access::Permission;
use ledge_identity::authentication::{Authenticator, Caller, CallerProof, MissingAccess, RequestPermit};
use ledge_part::access::refused_credential;
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_service::audit_event::AuditSink;

use super::client::packet::MessageProperties;

/// The user property with an API key, as in HTTP's header: `Bearer ledge_...`.
const AUTHORIZATION_PROPERTY: &str = "authorization";

/// An API key as it was presented. `Debug` does not show it.
pub struct PresentedKey(String);

impl std::fmt::Debug for PresentedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PresentedKey")
    }
}

impl PresentedKey {
    /// The key of a message. Another scheme than `Bearer` counts as a malformed key, and so do two different keys: this
    /// box does not guess which of them counts.
    pub fn of(properties: &MessageProperties) -> Option<Self> {
        let named = properties.user.iter().filter(|(name, _)| name.eq_ignore_ascii_case(AUTHORIZATION_PROPERTY));
        let mut keys: Vec<_> = named.map(|(_, value)| bearer(value)).collect();
        keys.dedup();
        match keys.as_slice() {
            [] => None,
            [key] => Some(Self((*key).to_owned())),
            _ => Some(Self(String::new())),
        }
    }
}

/// The token of `Bearer TOKEN`; empty for another scheme.
fn bearer(value: &str) -> &str {
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    if scheme.eq_ignore_ascii_case("bearer") { token.trim() } else { "" }
}

/// Authenticates the caller and checks that it may call `model`. Returns the caller and its place among the requests in
/// progress, or the refusal and the caller as far as it is known.
pub fn admit(
    authenticator: &Authenticator,
    audit: &AuditSink,
    sender: &Principal,
    key: Option<&PresentedKey>,
    model: Option<&ModelName>,
    now: Instant,
) -> Result<(Caller, RequestPermit), (Principal, ApiError)> {
    let presented = key.map(|key| key.0.as_bytes());
    let caller = authenticator.mqtt_caller(sender.clone(), presented);
    let caller = caller.map_err(|refused| (sender.clone(), refused_credential(&refused)))?;
    let principal = caller.principal.clone();
    match caller.enter(now) {
        Err(limited) => {
            Err((principal, ApiError::later(StatusCode::TOO_MANY_REQUESTS, limited.to_string(), limited.retry_after())))
        }
        Ok(place) => match caller.lacks(&[Permission::Infer], model) {
            None => Ok((caller, place)),
            Some(lacking) => {
                let what = if lacking == MissingAccess::Model { "model_scope" } else { Permission::Infer.as_str() };
                audit.record_denied(&principal, what);
                Err((principal, denied(&caller, lacking)))
            }
        },
    }
}

fn denied(caller: &Caller, lacking: MissingAccess) -> ApiError {
    let (principal, is_known) = (&caller.principal, caller.proof != CallerProof::None);
    match (lacking, is_known) {
        (MissingAccess::Permission, true) => {
            ApiError::with_code(403, format!("{principal} may not call models: this needs the role infer or admin"))
        }
        (MissingAccess::Model, true) => ApiError::with_code(
            403,
            format!("{principal} may not call this model: it is not in the list of its models"),
        ),
        (_, false) => {
            let message = "callers over MQTT without an API key may not call this model (access.mqtt): send a key in \
                           the user property authorization, as Bearer ledge_...";
            ApiError::with_code(401, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::token_bucket::CallRate;
    use ledge_identity::access::Role;
    use ledge_identity::access_config::AccessConfig;
    use ledge_identity::keys::{ApiKeyStore, NewApiKey};

    fn with_key(text: &str) -> Option<PresentedKey> {
        let user = vec![("Authorization".to_owned(), text.to_owned())];
        PresentedKey::of(&MessageProperties { user, ..MessageProperties::default() })
    }

    #[test]
    fn who_is_behind_the_broker_may_what_is_set_and_a_key_may_what_it_is_for() {
        let folder = tempfile::tempdir().unwrap();
        let new = |name: &str, role, max_rate: f64| NewApiKey {
            name: name.parse().unwrap(),
            roles: vec![role],
            models: Some(vec!["m".parse().unwrap()]),
            feature_views: None,
            expires_ms: None,
            max_rate: CallRate::new(max_rate).unwrap(),
            max_concurrent: 0,
        };
        let store = ApiKeyStore::new(folder.path());
        let key = |name, role, rate| format!("Bearer {}", store.create(&new(name, role, rate), 1).unwrap().0.reveal());
        let (till, viewer, slow) =
            (key("till", Role::Infer, 0.0), key("viewer", Role::Viewer, 0.0), key("slow", Role::Infer, 0.001));
        let (audit, _queue) = AuditSink::channel();
        let mut config = AccessConfig::default();
        config.mqtt.models = Some(vec!["open".parse().unwrap()]);
        let authenticator = Authenticator::open(&config, folder.path(), audit.clone());
        let sender = Principal::Mqtt("till/answers".into());
        let ask = |key: Option<&str>, model: &str| {
            let (key, model) = (key.and_then(with_key), model.parse().unwrap());
            let admitted = admit(&authenticator, &audit, &sender, key.as_ref(), Some(&model), Instant::now());
            admitted
                .map(|(caller, _)| caller.principal.to_string())
                .map_err(|(who, why)| (who.to_string(), why.status.as_u16()))
        };
        let (broker, refused) = ("mqtt:till/answers", |who: &str, status| Err((who.to_owned(), status)));
        assert_eq!(ask(None, "open"), Ok(broker.to_owned()));
        assert_eq!(ask(None, "m"), refused(broker, 401));
        assert_eq!(ask(Some(&till), "m"), Ok("key:till".to_owned()));
        assert_eq!(ask(Some(&till), "open"), refused("key:till", 403));
        assert_eq!(ask(Some(&viewer), "m"), refused("key:viewer", 403));
        assert_eq!(ask(Some("Bearer ledge_x"), "open"), refused(broker, 401));
        assert_eq!(ask(Some("Basic x"), "open"), refused(broker, 401));
        assert_eq!(
            [ask(Some(&slow), "m"), ask(Some(&slow), "m")],
            [Ok("key:slow".to_owned()), refused("key:slow", 429)]
        );
    }

    #[test]
    fn a_message_has_one_key_or_none_that_is_good() {
        let key = |values: &[&str]| {
            let user = values.iter().map(|value| (AUTHORIZATION_PROPERTY.to_owned(), (*value).to_owned())).collect();
            PresentedKey::of(&MessageProperties { user, ..MessageProperties::default() }).map(|key| key.0)
        };
        for (values, expected) in [
            (&[][..], None),
            (&["bEARER  k "], Some("k")),
            (&["Bearer"], Some("")),
            (&["Bearer "], Some("")),
            (&["Bearerk"], Some("")),
            (&["Basic x"], Some("")),
            (&["Basic x", "Bearer k"], Some("")),
            (&["Bearer k", "Bearer k"], Some("k")),
            (&["Bearer k", "Bearer l"], Some("")),
        ] {
            assert_eq!(key(values).as_deref(), expected, "{values:?}");
        }
    }

    #[test]
    fn a_key_does_not_show_itself() {
        assert_eq!(format!("{:?}", with_key("Bearer secret")), "Some(PresentedKey)");
    }
}
