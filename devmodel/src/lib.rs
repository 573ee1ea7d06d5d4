//! devmodel
