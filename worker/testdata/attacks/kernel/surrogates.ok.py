print("häß 中文 🙂")
