"""The run as the cloud conducts it and as every other host follows: manifest, enrolment, tree, record."""
