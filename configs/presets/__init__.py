"""What frameworks compute under the name of a method: frozen, one file a framework and version."""
