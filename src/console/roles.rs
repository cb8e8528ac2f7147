//! `GET /roles`: the permissions of each role.

use axum::response::Response;
use ledge_identity::access::Role;
use ledge_part::reply::json;
use serde::Serialize;

use crate::access::names;

#[derive(Serialize)]
struct UserRoleDocument {
    name: Role,
    /// In words; code is between backticks.
    may: &'static str,
    permissions: Vec<&'static str>,
}

/// `GET /roles`.
pub async fn roles() -> Response {
    let document = |role: Role| UserRoleDocument {
        name: role,
        may: role.may(),
        permissions: names(role.permissions().iter().copied()),
    };
    json(&serde_json::json!({ "roles": Role::ALL.map(document) }))
}
