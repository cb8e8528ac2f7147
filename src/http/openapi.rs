//! `GET /openapi.json`: every route, for people's tools.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use ledge_part::reply::json_bytes;
use ledge_part::route::RouteRule;
use serde_json::{Value, json};

use super::App;

/// The document, written by hand beside this file.
pub const DOCUMENT: &str = include_str!("openapi.json");

/// Answers with the document, in which a route of a part that is not described by hand has its permissions only.
pub async fn document(State(app): State<App>) -> Response {
    let mut response = json_bytes(app.shared.description.clone());
    // A page on another origin may show it.
    response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

/// The document with those of `rules` that it does not describe.
pub fn with_undescribed(rules: impl Iterator<Item = RouteRule>) -> Bytes {
    let described = Bytes::from_static(DOCUMENT.as_bytes());
    // A test parses it.
    let mut document: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
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
    use ledge_part::route::{ErrorForm, Scope};

    use super::*;

    #[test]
    fn a_route_that_nobody_described_is_there_with_its_permission() {
        let rule = |path| RouteRule {
            method: "GET",
            path,
            needs: VIEW,
            scope: Scope::Other,
            form: ErrorForm::Ledge,
            is_audited: false,
            recorded_as: None,
        };
        let document: Value = serde_json::from_slice(&with_undescribed([rule("/new/{*rest}")].into_iter())).unwrap();
        assert_eq!(document["paths"]["/new/{rest}"]["get"]["x-ledge-permission"], json!(["view"]));
        assert!(document["paths"]["/metrics"]["get"]["summary"].is_string());
        assert_eq!(with_undescribed([rule("/metrics")].into_iter()), DOCUMENT);
    }
}
