"""The source of the package `anabranch`: this folder is its root, each room a package below it."""
