//! Roles and their permissions. A caller without a role has no permission.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ledge_base::names::{FeatureName, ModelName};
use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::listed_names;

/// The permission that a route needs; every route needs exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Health checks, which need no credential.
    Public,
    /// Reading models, metrics and states.
    View,
    Infer,
    ReadFeatures,
    WriteFeatures,
    /// Loading and unloading models, and intervening in updates.
    Operate,
    /// Exporting and deleting data, and changing the trusted metadata.
    Administer,
    /// Reading the audit log itself.
    Audit,
    /// Seeing the pictures of cameras. Pictures of people are no figures.
    ViewPictures,
}

impl Permission {
    /// All values.
    pub const ALL: [Self; 9] = [
        Self::Public,
        Self::View,
        Self::Infer,
        Self::ReadFeatures,
        Self::WriteFeatures,
        Self::Operate,
        Self::Administer,
        Self::Audit,
        Self::ViewPictures,
    ];

    /// Its name in messages and in the audit log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::View => "view",
            Self::Infer => "infer",
            Self::ReadFeatures => "read_features",
            Self::WriteFeatures => "write_features",
            Self::Operate => "operate",
            Self::Administer => "administer",
            Self::Audit => "audit",
            Self::ViewPictures => "view_pictures",
        }
    }
}

/// A named set of permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Reads models, metrics and states.
    Viewer,
    /// Calls models, and reads features.
    Infer,
    FeatureWriter,
    /// Manages models and updates.
    Operator,
    Admin,
    Auditor,
    /// A viewer who also sees the pictures of cameras.
    CameraViewer,
}

impl Role {
    /// All values.
    pub const ALL: [Self; 7] = [
        Self::Viewer,
        Self::Infer,
        Self::FeatureWriter,
        Self::Operator,
        Self::Admin,
        Self::Auditor,
        Self::CameraViewer,
    ];

    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Infer => "infer",
            Self::FeatureWriter => "feature-writer",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Auditor => "auditor",
            Self::CameraViewer => "camera-viewer",
        }
    }

    /// The permissions in words, for the console and docs/access.md. Code is between backticks.
    pub fn may(self) -> &'static str {
        match self {
            Self::Viewer => {
                "see models, their index, configuration and statistics, `/metrics`, what is declared of features, \
                 the state of features, updates, alerts, inboxes and the audit log, what left the box, the catalogue, the figures, \
                 their history, what is unusual in them, how much more work the box can take, the findings of the \
                 console, drift of models, accounts, objectives, and what cameras count"
            }
            Self::Infer => "ask models, see those models, read features",
            Self::FeatureWriter => "push features, read them, see what is declared",
            Self::Operator => {
                "what a viewer may; load and unload models, add models of the catalogue; check for, pin, roll back \
                 and cancel updates; accept drift; call unusual figures normal; compact and snapshot the feature store; \
                 try alerts; add, fetch and remove jobs"
            }
            Self::Admin => {
                "everything: also upload and remove models, back up, restore and erase features, reset what is \
                 trusted, and see, create and revoke API keys"
            }
            Self::Auditor => "what a viewer may, and read the audit log",
            Self::CameraViewer => "what a viewer may, and see the pictures of cameras",
        }
    }

    /// Its permissions.
    pub fn permissions(self) -> &'static [Permission] {
        match self {
            Self::Viewer => &[Permission::Public, Permission::View],
            Self::Infer => &[Permission::Public, Permission::Infer, Permission::ReadFeatures],
            Self::FeatureWriter => &[Permission::Public, Permission::WriteFeatures, Permission::ReadFeatures],
            Self::Operator => &[Permission::Public, Permission::View, Permission::Operate],
            Self::Admin => &Permission::ALL,
            Self::Auditor => &[Permission::Public, Permission::View, Permission::Audit],
            Self::CameraViewer => &[Permission::Public, Permission::View, Permission::ViewPictures],
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is not a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected one of {}, got {text:?}", Role::ALL.map(Role::as_str).join(", "))]
pub struct InvalidRole {
    text: String,
}

impl FromStr for Role {
    type Err = InvalidRole;

    fn from_str(text: &str) -> Result<Self, InvalidRole> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| InvalidRole { text: text.chars().take(40).collect() })
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The feature views that a caller may read and push. In a list, `["*"]` stands for all views, future ones included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewScope(Option<Arc<[FeatureName]>>);

impl ViewScope {
    /// Every feature view.
    pub const ALL: Self = Self(None);

    /// These feature views.
    pub fn only(views: Vec<FeatureName>) -> Self {
        Self(Some(views.into()))
    }

    /// The feature views; `None` is all.
    pub fn views(&self) -> Option<&[FeatureName]> {
        self.0.as_deref()
    }

    /// True if a feature view is in it.
    pub fn has(&self, view: &str) -> bool {
        self.views().is_none_or(|views| views.iter().any(|listed| listed.as_str() == view))
    }
}

impl Default for ViewScope {
    /// No feature view.
    fn default() -> Self {
        Self::only(Vec::new())
    }
}

impl<'de> Deserialize<'de> for ViewScope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(listed_names::read(deserializer)?.map(Vec::into)))
    }
}

impl Serialize for ViewScope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        listed_names::write(self.views(), serializer)
    }
}

/// The permissions of a caller, and the models and feature views that they are limited to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallerAccess {
    roles: Arc<[Role]>,
    /// `None` is every model, future ones included.
    models: Option<Arc<[ModelName]>>,
    feature_views: ViewScope,
}

impl CallerAccess {
    /// The access of these roles; `models` is `None` for all. Without `feature_views` it covers all views, or none if
    /// `models` names some: a key for one model must not read the features of all entities.
    pub fn new(
        roles: impl IntoIterator<Item = Role>,
        models: Option<Vec<ModelName>>,
        feature_views: Option<ViewScope>,
    ) -> Self {
        let mut roles: Vec<_> = roles.into_iter().collect();
        roles.sort_unstable();
        roles.dedup();
        let derived = if models.is_none() { ViewScope::ALL } else { ViewScope::default() };
        Self { roles: roles.into(), models: models.map(Into::into), feature_views: feature_views.unwrap_or(derived) }
    }

    /// All permissions, for the daemon itself.
    pub fn everything() -> Self {
        Self::new([Role::Admin], None, None)
    }

    /// Its roles.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// The models that it covers; `None` is all.
    pub fn models(&self) -> Option<&[ModelName]> {
        self.models.as_deref()
    }

    /// The feature views that it covers.
    pub fn feature_views(&self) -> &ViewScope {
        &self.feature_views
    }

    /// True if it covers only some models or some feature views.
    pub fn is_scoped(&self) -> bool {
        self.models.is_some() || self.feature_views != ViewScope::ALL
    }

    /// True if the roles have a permission, for any model.
    pub fn allows(&self, permission: Permission) -> bool {
        permission == Permission::Public || self.roles.iter().any(|role| role.permissions().contains(&permission))
    }

    /// True if the roles have a permission and the model is in scope.
    pub fn allows_model(&self, permission: Permission, model: &ModelName) -> bool {
        self.allows(permission) && self.has_model(model)
    }

    /// True if a model is in scope.
    pub fn has_model(&self, model: &ModelName) -> bool {
        self.models().is_none_or(|models| models.contains(model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_role_may_do_nothing() {
        let none = CallerAccess::default();
        for permission in Permission::ALL {
            assert_eq!(none.allows(permission), permission == Permission::Public, "{permission:?}");
        }
    }

    #[test]
    fn beside_an_admin_only_an_auditor_reads_the_log_and_only_a_camera_viewer_sees_pictures() {
        for role in Role::ALL {
            let access = CallerAccess::new([role], None, None);
            assert_eq!(access.allows(Permission::Administer), role == Role::Admin, "{role}");
            assert_eq!(access.allows(Permission::Audit), matches!(role, Role::Admin | Role::Auditor), "{role}");
            let sees_pictures = access.allows(Permission::ViewPictures);
            assert_eq!(sees_pictures, matches!(role, Role::Admin | Role::CameraViewer), "{role}");
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert!("Admin".parse::<Role>().is_err());
    }

    #[test]
    fn a_scope_holds_for_every_role() {
        let (ours, theirs): (ModelName, ModelName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let access = CallerAccess::new([Role::Admin], Some(vec![ours.clone()]), None);
        assert!(access.allows_model(Permission::Infer, &ours));
        assert!(!access.allows_model(Permission::Infer, &theirs));
        assert!(CallerAccess::everything().allows_model(Permission::Operate, &theirs));
    }

    #[test]
    fn a_scope_of_models_has_no_feature_views_unless_it_names_them() {
        let views = |models: Option<&str>, listed: Option<&str>| {
            let models = models.map(|model| vec![model.parse().unwrap()]);
            let access =
                CallerAccess::new([Role::Infer], models, listed.map(|list| serde_json::from_str(list).unwrap()));
            (access.feature_views().has("a"), access.feature_views().has("b"), access.is_scoped())
        };
        assert_eq!(views(None, None), (true, true, false));
        assert_eq!(views(None, Some("[\"a\"]")), (true, false, true));
        assert_eq!(views(Some("m"), None), (false, false, true));
        assert_eq!(views(Some("m"), Some("[\"a\"]")), (true, false, true));
        assert_eq!(views(Some("m"), Some("[\"*\"]")), (true, true, true));
        assert_eq!(views(None, Some("[]")), (false, false, true));
        for wrong in ["[\"a\", \"*\"]", "[\"a b\"]", "\"*\""] {
            assert!(serde_json::from_str::<ViewScope>(wrong).is_err(), "{wrong}");
        }
    }
}
