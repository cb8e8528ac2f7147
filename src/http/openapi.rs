//! `GET /openapi.json`: the description of every route.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use ledge_part::reply::json_bytes;
use ledge_part::route::RouteRule;
use serde_json::{Value, json};

use super::App;

/// The document, written by hand.
pub const OPENAPI_JSON: &str = include_str!("openapi.json");

/// Answers with the document. A route of a part that the hand-written document does not describe has only its
/// permissions.
pub async fn document(State(app): State<App>) -> Response {
    let rules = || app.parts().iter().flat_map(|part| part.routes(app.context())).map(|route| route.rule);
    let description = app.description().get_or_init(|| with_undescribed(rules()));
    let mut response = json_bytes(description.clone());
    // Pages of other origins may read it.
    response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

/// Adds those of `rules` that the document does not describe.
fn with_undescribed(rules: impl Iterator<Item = RouteRule>) -> Bytes {
    let described = Bytes::from_static(OPENAPI_JSON.as_bytes());
    // A test parses it.
    let mut document: Value = serde_json::from_str(OPENAPI_JSON).unwrap_or_default();
    let mut is_changed = false;
    let Some(paths) = document.get_mut("paths").and_then(Value::as_object_mut) else { return described };
    for rule in rules {
        // The rest of a path is a parameter like any other there.
        let operations = paths.entry(rule.path.replace("{*", "{")).or_insert_with(|| json!({}));
        let method = rule.method.to_lowercase();
        if let Some(operations) = operations.as_object_mut().filter(|operations| !operations.contains_key(&method)) {
            let needs: Vec<_> = rule.needs.iter().map(|need| need.as_str()).collect();
            let operation = json!({ "responses": { "default": { "description": "" } }, "x-ledge-permission": needs });
            operations.insert(method, operation);
            is_changed = true;
        }
    }
    if is_changed { document.to_string().into() } else { described }
}

#[cfg(test)]
mod tests {
    use ledge_part::route::needs::VIEW;
    use ledge_part::route::{ErrorForm, LocalPlain, RouteScope};

    use super::*;

    #[test]
    fn a_route_without_a_description_is_listed_with_its_permission() {
        let rule = |path| RouteRule {
            method: "GET",
            path,
            needs: VIEW,
            scope: RouteScope::Other,
            form: ErrorForm::Ledge,
            is_audited: false,
            recorded_as: None,
            local_plain: LocalPlain::Nobody,
            needs_caller: false,
        };
        let document: Value = serde_json::from_slice(&with_undescribed([rule("/new/{*rest}")].into_iter())).unwrap();
        assert_eq!(document["paths"]["/new/{rest}"]["get"]["x-ledge-permission"], json!(["view"]));
        assert!(document["paths"]["/metrics"]["get"]["summary"].is_string());
        assert_eq!(with_undescribed([rule("/metrics")].into_iter()), OPENAPI_JSON);
    }
}
